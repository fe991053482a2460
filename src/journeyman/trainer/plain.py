"""Passes in torch, for any type: the definition that the native ones are compared with."""

import torch
from torch import Tensor

from journeyman.model import ModelConfig
from journeyman.trainer.attention import trie_attend
from journeyman.trainer.head import head_gradient, head_scores
from journeyman.trainer.network import head_weight, training_network
from journeyman.trainer.parameters import Parameters
from journeyman.trainer.passes import Derivative, Scores
from journeyman.trainer.trie import Pack


class PlainPasses:
    """See `Passes`."""

    def __init__(self, config: ModelConfig, parameters: Parameters) -> None:
        self.network = training_network(config, parameters)
        self._head = head_weight(config, parameters)
        self._pack: Pack | None = None

    @property
    def arithmetic(self) -> str:
        """The order of torch's sums depends on the number of threads."""
        return f"torch {torch.__version__}, {torch.get_num_threads()} threads"

    def refresh(self) -> None:
        """Nothing to do: the network reads the compute weights where they are."""

    def forward(self, pack: Pack) -> None:
        """See `Passes.forward`."""
        self._pack = pack
        self._hidden: Tensor = self.network(
            torch.from_numpy(pack.token_ids),
            torch.from_numpy(pack.positions),
            trie_attend(pack.segments),
        )

    def score(self, temperature: float, derivative: Derivative | None = None) -> Scores:
        """See `Passes.score`."""
        if self._pack is None:
            raise ValueError("score follows forward")
        self._rows = torch.from_numpy(self._pack.row_nodes)
        targets = torch.from_numpy(self._pack.row_targets)
        hidden = self._hidden.detach()[self._rows]
        if derivative is None:
            return head_scores(hidden, self._head, targets, temperature)
        scores, self._gradient = head_gradient(hidden, self._head, targets, derivative, temperature)
        return scores

    def backward(self) -> None:
        """See `Passes.backward`."""
        upstream = torch.zeros_like(self._hidden).index_add_(0, self._rows, self._gradient)
        self._hidden.backward(upstream)  # type: ignore[no-untyped-call]
