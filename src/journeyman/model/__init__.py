"""One model definition for training and serving, its checkpoints, and the backends."""

from journeyman.model.attention import causal_attend
from journeyman.model.config import ModelConfig, RopeConfig
from journeyman.model.llama import Attend, Llama
from journeyman.model.step import BLOCK, Backend, StepBatch, StepResult

__all__ = [
    "BLOCK",
    "Attend",
    "Backend",
    "Llama",
    "ModelConfig",
    "RopeConfig",
    "StepBatch",
    "StepResult",
    "causal_attend",
]
