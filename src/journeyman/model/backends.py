"""Choosing who computes steps."""

import logging
from typing import Literal, get_args

from journeyman.model.config import ModelConfig
from journeyman.model.kernels import NativeBackend
from journeyman.model.step import Backend
from journeyman.model.torch_backend import TorchBackend
from journeyman.types import UserError

BackendName = Literal["auto", "native", "torch"]
log = logging.getLogger(__name__)


def make_backend(config: ModelConfig, name: str = "auto") -> Backend:
    """The backend of that name for models of this shape; `auto` is the native one where it can
    be compiled and supports the shape. Raises UserError for an unknown name."""
    if name not in get_args(BackendName):
        raise UserError(
            f"no backend is called {name!r}", f"known: {', '.join(get_args(BackendName))}"
        )
    if name == "torch":
        return TorchBackend(config)
    try:
        backend = NativeBackend(config)
    except UserError as error:
        if name == "native":
            raise
        log.warning("steps are computed by the torch backend, which is slower: %s", error)
        return TorchBackend(config)
    log.info("steps are computed natively: %s, %d threads", backend.isa.name, backend.threads)
    return backend
