"""The trainer: batches in, policy versions out."""

import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from journeyman.model import ModelConfig, checkpoint
from journeyman.trainer import diagnosis, state
from journeyman.trainer.attention import trie_attend
from journeyman.trainer.failure import NonFiniteError
from journeyman.trainer.head import HeadResult, head_gradient, log_probabilities
from journeyman.trainer.losses import (
    Behaviour,
    LossKind,
    PolicyLoss,
    SupervisedLoss,
    TokenLoss,
)
from journeyman.trainer.metrics import StepMetrics
from journeyman.trainer.network import head_weight, training_network
from journeyman.trainer.optimiser import Optimiser, OptimiserSettings
from journeyman.trainer.parameters import Parameters
from journeyman.trainer.tally import Tally
from journeyman.trainer.trie import Pack, pack_samples
from journeyman.types import Batch, PolicyVersion, Sample, UserError

RECIPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


class Trainer:
    """FP32 master weights, AdamW, and forward and backward passes in `compute` (bf16).

    `clip_ratio` bounds the probability ratio to [1 - below, 1 + above]; `temperature` is the one
    the episodes were sampled at, so that the trainer's log-probabilities are of the distribution
    that was sampled from; `max_nodes` bounds the tokens of one forward pass (memory); `dump_dir`
    is where a step that met NaN or infinity leaves its batch and state.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        clip_norm: float = 1.0,
        warmup_steps: int = 0,
        clip_ratio: tuple[float, float] = (0.2, 0.28),
        temperature: float = 1.0,
        max_nodes: int = 2048,
        seed: int = 0,
        dump_dir: Path | None = None,
        compute: torch.dtype = torch.bfloat16,
        master: torch.dtype = torch.float32,
    ) -> None:
        if not temperature > 0:
            raise UserError(
                f"temperature {temperature} leaves no distribution to train on",
                "sample training episodes at a temperature above 0",
            )
        self.model_dir = Path(model_dir)
        self.config = ModelConfig.load(self.model_dir)
        loaded = checkpoint.load_state(self.model_dir)
        checkpoint.check_state(loaded, self.config, source=str(model_dir))
        self.parameters = Parameters(self.config, loaded, master=master, compute=compute)
        self.network = training_network(self.config, self.parameters)
        self.head = head_weight(self.config, self.parameters)
        self.optimiser = Optimiser(
            self.parameters,
            OptimiserSettings(
                learning_rate=learning_rate,
                weight_decay=weight_decay,
                betas=betas,
                eps=eps,
                clip_norm=clip_norm,
                warmup_steps=warmup_steps,
            ),
        )
        self.clip_ratio = clip_ratio
        self.temperature = temperature
        self.max_nodes = max_nodes
        self.dump_dir = dump_dir
        self.num_versions = 0
        """Steps applied since the start; the number of the present policy version."""
        torch.manual_seed(seed)

    def step(
        self, batch: Batch, loss: LossKind, *, learning_rate: float | None = None
    ) -> StepMetrics:
        """One optimiser step on all of `batch`.

        `learning_rate` overrides the trainer's for this step. Raises UserError when the batch
        holds no sampled token, NonFiniteError when anything is NaN or infinite: then the weights
        are as before.
        """
        started = time.perf_counter()
        packs, tally = self.backward(batch, loss)
        peak = self.optimiser.settings.learning_rate if learning_rate is None else learning_rate
        rate = self.optimiser.learning_rate(peak)
        with tally.timed("optimiser"):
            norm = self.optimiser.gradient_norm()
            if not math.isfinite(norm):
                self._refuse(batch, diagnosis.first_bad_gradient(self.parameters))
            self.optimiser.step(norm, peak)
            self.parameters.refresh()
        self.num_versions += 1
        return tally.metrics(
            step=self.num_versions,
            packs=packs,
            empty_samples=sum(not any(sample.stream.loss_mask) for sample in batch.samples),
            gradient_norm=norm,
            learning_rate=rate,
            policy=loss == "policy",
            total_s=time.perf_counter() - started,
        )

    def backward(self, batch: Batch, loss: LossKind) -> tuple[list[Pack], Tally]:
        """The batch's gradient, in `parameters.gradient`, without a step. Raises as `step`."""
        packs = pack_samples(batch.samples, self.max_nodes)
        if not packs:
            raise UserError(
                f"batch {batch.step} holds no sampled token", "drop such a batch: nothing to learn"
            )
        tally = Tally(num_tokens=sum(len(pack.token_rows) for pack in packs))
        self.parameters.gradient.zero_()
        for pack in packs:
            self._accumulate(batch, pack, loss, tally)
        return packs, tally

    def _accumulate(self, batch: Batch, pack: Pack, loss: LossKind, tally: Tally) -> None:
        """Add one pack's gradient and figures."""
        wide = self.parameters.master.dtype
        behaviour = Behaviour.of(pack, batch.samples, wide)
        token_loss = self._loss(loss, behaviour)
        with tally.timed("forward"):
            hidden = self._hidden(pack)
        rows = torch.from_numpy(pack.row_nodes)
        with tally.timed("head"):
            result = self._head(hidden.detach()[rows], pack, token_loss, tally.num_tokens)
        self._check_finite(batch, pack, result)
        with tally.timed("backward"):
            upstream = torch.zeros_like(hidden).index_add_(0, rows, result.gradient)
            hidden.backward(upstream)  # type: ignore[no-untyped-call]
        logprobs = result.logprobs[torch.from_numpy(pack.token_rows)]
        entropies = result.entropies[torch.from_numpy(pack.token_rows)]
        tally.add(logprobs, entropies, behaviour, token_loss, self.num_versions)

    def _hidden(self, pack: Pack) -> Tensor:
        hidden: Tensor = self.network(
            torch.from_numpy(pack.token_ids),
            torch.from_numpy(pack.positions),
            trie_attend(pack.segments),
        )
        return hidden

    def _loss(self, kind: LossKind, behaviour: Behaviour) -> TokenLoss:
        if kind == "supervised":
            return SupervisedLoss()
        return PolicyLoss(behaviour.advantages, behaviour.logprobs, *self.clip_ratio)

    def _head(self, hidden: Tensor, pack: Pack, loss: TokenLoss, num_tokens: int) -> HeadResult:
        token_rows = torch.from_numpy(pack.token_rows)

        def derivative(rows: slice, logprobs: Tensor) -> Tensor:
            """Rows that several samples share receive the sum of their tokens' derivatives."""
            first, last = torch.searchsorted(token_rows, torch.tensor([rows.start, rows.stop]))
            tokens = slice(int(first), int(last))
            leaf = logprobs.detach().clone().requires_grad_()
            with torch.enable_grad():
                gathered = leaf[token_rows[tokens] - rows.start].to(self.parameters.master.dtype)
                total = loss.terms(gathered, tokens).sum() / num_tokens
            (slope,) = torch.autograd.grad(total, leaf)
            return slope

        targets = torch.from_numpy(pack.row_targets)
        return head_gradient(hidden, self.head, targets, derivative, self.temperature)

    def _check_finite(self, batch: Batch, pack: Pack, result: HeadResult) -> None:
        if torch.isfinite(result.logprobs).all() and torch.isfinite(result.entropies).all():
            if torch.isfinite(result.gradient).all():
                return
            self._refuse(batch, "gradient of the logits")
        self._refuse(
            batch,
            diagnosis.first_bad_activation(
                self.network, self.parameters, lambda: self._hidden(pack)
            ),
        )

    def _refuse(self, batch: Batch, tensor: str) -> NoReturn:
        """Nothing was applied: masters and moments are those of the last good step."""
        where = "set dump_dir to keep the batch and the state of such a step"
        if self.dump_dir is not None:
            directory = self.dump_dir / f"not-finite-{self.num_versions + 1}"
            self.save(directory)
            (directory / "batch.json").write_text(batch.model_dump_json())
            where = f"the batch and the state before the step are in {directory}"
        raise NonFiniteError(
            f"NaN or infinity in batch {batch.step}, first in: {tensor}; step not applied", where
        )

    def weights(self) -> tuple[PolicyVersion, dict[str, Tensor]]:
        """The present policy: a copy of the very bytes that forward passes use."""
        snapshot = dict(self.parameters.named(self.parameters.compute.clone()))
        version = PolicyVersion(
            number=self.num_versions,
            digest=checkpoint.digest(snapshot),
            recipe=RECIPES[self.parameters.compute.dtype],
        )
        return version, snapshot

    def reset_optimiser(self) -> None:
        """Forget moments and start the warm-up again: between warm start and reinforcement."""
        self.optimiser.reset()

    def save(self, directory: Path) -> None:
        """Masters, moments, generator and counts; whole or not at all. Raises UserError."""
        state.save(directory, self.parameters, self.optimiser, self.num_versions)

    def load(self, directory: Path) -> None:
        """Continue from `save`: the same batch then gives the same step, bit for bit, with the
        same number of threads. Raises UserError; then nothing has changed."""
        record = state.load(directory, self.parameters, self.optimiser)
        self.num_versions = record.num_versions
        if record.num_threads != torch.get_num_threads():
            warnings.warn(
                f"{directory} was written with {record.num_threads} threads, this process has "
                f"{torch.get_num_threads()}: steps agree but for their last bits",
                stacklevel=2,
            )

    def export(self, directory: Path) -> None:
        """The present policy as a checkpoint that Transformers opens. Raises UserError."""
        _, weights = self.weights()
        checkpoint.save(weights, directory, tokenizer_from=self.model_dir)

    @torch.no_grad()
    def log_probabilities(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Of each sample's sampled tokens, in order, under the present policy."""
        found: list[dict[int, float]] = [{} for _ in samples]
        for pack in pack_samples(samples, self.max_nodes):
            hidden = self._hidden(pack)[torch.from_numpy(pack.row_nodes)]
            targets = torch.from_numpy(pack.row_targets)
            rows = log_probabilities(hidden, self.head.value, targets, self.temperature).tolist()
            places = zip(pack.token_samples, pack.token_indices, pack.token_rows, strict=True)
            for sample, index, row in places:
                found[sample][int(index)] = rows[row]
        return [[values[index] for index in sorted(values)] for values in found]
