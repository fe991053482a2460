"""Batches in, policy versions out."""

from journeyman.trainer.failure import NonFiniteError
from journeyman.trainer.metrics import StepMetrics
from journeyman.trainer.trainer import Trainer

__all__ = ["NonFiniteError", "StepMetrics", "Trainer"]
