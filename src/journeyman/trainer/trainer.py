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
from journeyman.trainer.failure import NonFiniteError
from journeyman.trainer.losses import (
    Behaviour,
    LossKind,
    PolicyLoss,
    SupervisedLoss,
    TokenLoss,
)
from journeyman.trainer.metrics import StepMetrics
from journeyman.trainer.native_passes import make_passes
from journeyman.trainer.optimiser import Optimiser, OptimiserSettings
from journeyman.trainer.parameters import Parameters
from journeyman.trainer.passes import Derivative
from journeyman.trainer.tally import Tally
from journeyman.trainer.trie import Pack, pack_samples
from journeyman.types import Batch, PolicyVersion, Sample, UserError

RECIPES = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


class Trainer:
    """FP32 master weights, AdamW, and forward and backward passes in `compute` (bf16).

    `clip_ratio` bounds the probability ratio to [1 - below, 1 + above]; `temperature` is the one
    the episodes were sampled at, so that the trainer's log-probabilities are of the distribution
    that was sampled from; `max_nodes` bounds the tokens of one forward pass (memory); `dump_dir`
    is where a step that met NaN or infinity leaves its batch and state. `passes` says who computes:
    native, torch, or auto (native where it can be).
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
        passes: str = "auto",
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
        self.passes = make_passes(self.config, self.parameters, passes)
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
            self._refresh()
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
        behaviour = Behaviour.of(pack, batch.samples, self.parameters.master.dtype)
        token_loss = self._loss(loss, behaviour)
        with tally.timed("forward"):
            self.passes.forward(pack)
        with tally.timed("head"):
            derivative = self._derivative(batch, pack, token_loss, tally.num_tokens)
            scores = self.passes.score(self.temperature, derivative)
        with tally.timed("backward"):
            self.passes.backward()
        token_rows = torch.from_numpy(pack.token_rows)
        logprobs, entropies = scores.logprobs[token_rows], scores.entropies[token_rows]
        tally.add(logprobs, entropies, behaviour, token_loss, self.num_versions)

    def _loss(self, kind: LossKind, behaviour: Behaviour) -> TokenLoss:
        if kind == "supervised":
            return SupervisedLoss()
        return PolicyLoss(behaviour.advantages, behaviour.logprobs, *self.clip_ratio)

    def _derivative(self, batch: Batch, pack: Pack, loss: TokenLoss, num_tokens: int) -> Derivative:
        token_rows = torch.from_numpy(pack.token_rows)

        def derivative(rows: slice, logprobs: Tensor) -> Tensor:
            """Rows that several samples share receive the sum of their tokens' derivatives."""
            if not torch.isfinite(logprobs).all():
                bad = diagnosis.first_bad_activation(self.config, self.parameters, pack)
                self._refuse(batch, bad)
            first, last = torch.searchsorted(token_rows, torch.tensor([rows.start, rows.stop]))
            tokens = slice(int(first), int(last))
            leaf = logprobs.detach().clone().requires_grad_()
            with torch.enable_grad():
                gathered = leaf[token_rows[tokens] - rows.start].to(self.parameters.master.dtype)
                total = loss.terms(gathered, tokens).sum() / num_tokens
            (slope,) = torch.autograd.grad(total, leaf)
            if not torch.isfinite(slope).all():
                self._refuse(batch, "gradient of the log-probabilities")
            return slope

        return derivative

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
        state.save(
            directory,
            self.parameters,
            self.optimiser,
            num_versions=self.num_versions,
            arithmetic=self.passes.arithmetic,
        )

    def load(self, directory: Path) -> None:
        """Continue from `save`: the same batch then gives the same step, bit for bit, if it is
        computed by the same passes. Raises UserError; then nothing has changed."""
        record = state.load(directory, self.parameters, self.optimiser)
        self.num_versions = record.num_versions
        self._refresh()
        if record.arithmetic != self.passes.arithmetic:
            warnings.warn(
                f"{directory} was computed by {record.arithmetic}, this process computes by "
                f"{self.passes.arithmetic}: steps agree but for their last bits",
                stacklevel=2,
            )

    def _refresh(self) -> None:
        """The one cast of a step."""
        self.parameters.refresh()
        self.passes.refresh()

    def export(self, directory: Path) -> None:
        """The present policy as a checkpoint that Transformers opens. Raises UserError."""
        _, weights = self.weights()
        checkpoint.save(weights, directory, tokenizer_from=self.model_dir)

    @torch.no_grad()
    def log_probabilities(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Of each sample's sampled tokens, in order, under the present policy."""
        found: list[dict[int, float]] = [{} for _ in samples]
        for pack in pack_samples(samples, self.max_nodes):
            self.passes.forward(pack)
            rows = self.passes.score(self.temperature).logprobs.tolist()
            places = zip(pack.token_samples, pack.token_indices, pack.token_rows, strict=True)
            for sample, index, row in places:
                found[sample][int(index)] = rows[row]
        return [[values[index] for index in sorted(values)] for values in found]
