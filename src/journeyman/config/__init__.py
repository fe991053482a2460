"""Configuration: one frozen model per component. Imports neither torch nor ray."""

from journeyman.config.home import home_dir
from journeyman.config.load import build_config, load_config, shipped_configs
from journeyman.config.run import (
    AgentConfig,
    ControlsConfig,
    EngineConfig,
    EvaluationConfig,
    ModelConfig,
    OptimiserConfig,
    ReinforcementConfig,
    RunConfig,
    SandboxConfig,
    Section,
    StoreConfig,
    TasksConfig,
    WarmStartConfig,
)

__all__ = [
    "AgentConfig",
    "ControlsConfig",
    "EngineConfig",
    "EvaluationConfig",
    "ModelConfig",
    "OptimiserConfig",
    "ReinforcementConfig",
    "RunConfig",
    "SandboxConfig",
    "Section",
    "StoreConfig",
    "TasksConfig",
    "WarmStartConfig",
    "build_config",
    "home_dir",
    "load_config",
    "shipped_configs",
]
