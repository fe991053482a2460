"""Where NaN or infinity came from."""

from collections.abc import Callable

import torch
from torch import Tensor

from journeyman.model import Llama
from journeyman.trainer.parameters import Parameters


def first_bad_gradient(parameters: Parameters) -> str:
    """The first parameter whose gradient is not finite, in the order of the state dict."""
    return f"gradient of {_first_bad(parameters, parameters.gradient)}"


def first_bad_activation(
    network: Llama, parameters: Parameters, forward: Callable[[], Tensor]
) -> str:
    """Name the first bad weight or, running `forward` again, the first bad layer's output."""
    weight = _first_bad(parameters, parameters.compute)
    if weight:
        return f"weight {weight}"
    bad: list[str] = []

    def watch(name: str) -> Callable[[object, object, Tensor], None]:
        def hook(_module: object, _inputs: object, output: Tensor) -> None:
            if not torch.isfinite(output).all():
                bad.append(name)

        return hook

    handles = [
        module.register_forward_hook(watch(f"output of {name}"))
        for name, module in network.named_modules()
        if name.startswith("model.")
    ]
    try:
        with torch.no_grad():
            forward()
    finally:
        for handle in handles:
            handle.remove()
    return bad[0] if bad else "logits"


def _first_bad(parameters: Parameters, buffer: Tensor) -> str | None:
    for name, values in parameters.named(buffer):
        if not torch.isfinite(values).all():
            return name
    return None
