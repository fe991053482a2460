"""Where NaN or infinity came from."""

from collections.abc import Callable

import torch
from torch import Tensor

from journeyman.model import ModelConfig
from journeyman.trainer.parameters import Parameters
from journeyman.trainer.plain import PlainPasses
from journeyman.trainer.trie import Pack


def first_bad_gradient(parameters: Parameters) -> str:
    """The first parameter whose gradient is not finite, in the order of the state dict."""
    return f"gradient of {_first_bad(parameters, parameters.gradient)}"


def first_bad_activation(config: ModelConfig, parameters: Parameters, pack: Pack) -> str:
    """Name the first bad weight or, running `pack` through torch, the first bad output."""
    weight = _first_bad(parameters, parameters.compute)
    if weight:
        return f"weight {weight}"
    passes = PlainPasses(config, parameters)
    bad: list[str] = []

    def watch(name: str) -> Callable[[object, object, Tensor], None]:
        def hook(_module: object, _inputs: object, output: Tensor) -> None:
            if not torch.isfinite(output).all():
                bad.append(name)

        return hook

    handles = [
        module.register_forward_hook(watch(f"output of {name}"))
        for name, module in passes.network.named_modules()
        if name.startswith("model.")
    ]
    try:
        with torch.no_grad():
            passes.forward(pack)
    finally:
        for handle in handles:
            handle.remove()
    return bad[0] if bad else "logits"


def _first_bad(parameters: Parameters, buffer: Tensor) -> str | None:
    for name, values in parameters.named(buffer):
        if not torch.isfinite(values).all():
            return name
    return None
