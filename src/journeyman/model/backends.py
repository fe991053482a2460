"""Choosing who computes steps."""

import logging
from typing import Literal, get_args

from journeyman.model.config import ModelConfig
from journeyman.model.step import Backend
from journeyman.model.torch_backend import TorchBackend
from journeyman.types import UserError

BackendName = Literal["auto", "native", "torch"]
log = logging.getLogger(__name__)


def make_backend(config: ModelConfig, name: str = "auto") -> Backend:
    """The backend of that name for models of this shape. Raises UserError for an unknown name."""
    if name not in get_args(BackendName):
        raise UserError(
            f"no backend is called {name!r}", f"known: {', '.join(get_args(BackendName))}"
        )
    if name == "native":
        raise UserError("the native backend is not part of this build", "use the torch backend")
    log.info("steps are computed by the torch backend")
    return TorchBackend(config)
