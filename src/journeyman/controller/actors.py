"""The two Ray actors of a run, engine and trainer, and the sampler that reaches the engine."""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from journeyman.chat import ChatFormat
from journeyman.config import EngineConfig, OptimiserConfig
from journeyman.inference import ChatService, Engine
from journeyman.trainer import StepMetrics, Trainer
from journeyman.trainer.losses import LossKind
from journeyman.types import Batch, Completion, CompletionRequest, EngineError, PolicyVersion

Weights = dict[str, np.ndarray[Any, Any]]
"""BF16 tensors by name, their bits as int16. Ray moves NumPy arrays without a copy, but would
pickle a tensor that is a view of a flat buffer with the whole buffer behind it."""


def to_wire(state: Mapping[str, torch.Tensor]) -> Weights:
    """BF16 tensors as Ray moves them."""
    return {name: tensor.view(torch.int16).numpy() for name, tensor in state.items()}


def from_wire(weights: Weights) -> dict[str, torch.Tensor]:
    """The tensors of `to_wire`, on memory that Ray shares: not to be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return {name: torch.from_numpy(bits).view(torch.bfloat16) for name, bits in weights.items()}


class EngineActor:
    """One inference replica. Async: many conversations are in flight at once."""

    def __init__(self, model_dir: str, config: EngineConfig) -> None:
        torch.set_num_threads(os.cpu_count() or 1)
        self._engine = Engine(
            Path(model_dir),
            backend=config.backend,
            kv_tokens=config.kv_tokens,
            max_sequences=config.max_sequences,
        )
        self._service = ChatService(self._engine, ChatFormat.load(Path(model_dir)))

    async def ready(self) -> PolicyVersion:
        return self._engine.version

    async def complete(self, request: CompletionRequest) -> Completion:
        return await self._service.complete(request)

    async def release(self, conversation: str) -> None:
        self._service.release(conversation)

    async def load_weights(self, weights: Weights, version: PolicyVersion) -> None:
        """Serve these weights from the next step on; refused if the digest differs."""
        await self._engine.load_weights(from_wire(weights), version)

    async def stats(self) -> dict[str, float]:
        return self._engine.stats()


class TrainerActor:
    """The trainer, one call at a time."""

    def __init__(self, model_dir: str, config: OptimiserConfig, seed: int, policy: dict[str, Any]):
        torch.set_num_threads(os.cpu_count() or 1)
        self._trainer = Trainer(
            Path(model_dir),
            weight_decay=config.weight_decay,
            betas=config.betas,
            clip_norm=config.clip_norm,
            max_nodes=config.pack_nodes,
            seed=seed,
            **policy,
        )

    def step(self, batch: Batch, loss: LossKind, learning_rate: float) -> StepMetrics:
        return self._trainer.step(batch, loss, learning_rate=learning_rate)

    def reset_optimiser(self) -> None:
        """Forget the moments, between warm start and reinforcement."""
        self._trainer.reset_optimiser()

    def weights(self) -> tuple[Weights, PolicyVersion]:
        """The present policy, for an engine's `load_weights`."""
        version, state = self._trainer.weights()
        return to_wire(state), version

    def save(self, directory: str) -> None:
        self._trainer.save(Path(directory))

    def load(self, directory: str) -> None:
        self._trainer.load(Path(directory))

    def export(self, directory: str) -> None:
        """A checkpoint that Transformers opens."""
        self._trainer.export(Path(directory))


@contextmanager
def failures_named(who: str) -> Iterator[None]:
    """A dead actor becomes an EngineError that says what to do; other errors pass as they are."""
    try:
        yield
    except ray.exceptions.RayActorError as error:
        raise EngineError(f"{who} died: {error}", "resume the run with --resume") from error


class RaySampler:
    """`types.Sampler` over an engine actor."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    async def complete(self, request: CompletionRequest) -> Completion:
        with failures_named("the inference engine"):
            completion: Completion = await self._engine.complete.remote(request)
        return completion

    async def release(self, conversation: str) -> None:
        """Forget a conversation's token stream."""
        with failures_named("the inference engine"):
            await self._engine.release.remote(conversation)


def start_ray() -> None:
    """A local Ray, or the cluster that RAY_ADDRESS names. Quiet, without a dashboard."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's workers would yield to every sandbox (nice 15), and a step waits for both.
    os.environ.setdefault("RAY_worker_niceness", "0")
    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    else:
        ray.init(
            num_cpus=os.cpu_count(),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )


def stop_ray() -> None:
    """End this process's actors, and the local Ray if it was started here."""
    ray.shutdown()


def engine_actor(model_dir: Path, config: EngineConfig) -> Any:
    """Place one engine. It shares the cores with the trainer: they take turns."""
    actor: Any = ray.remote(EngineActor)
    return actor.options(num_cpus=0.5, max_concurrency=1024).remote(str(model_dir), config)


def trainer_actor(
    model_dir: Path, config: OptimiserConfig, seed: int, policy: dict[str, Any]
) -> Any:
    """Place the trainer."""
    actor: Any = ray.remote(TrainerActor)
    return actor.options(num_cpus=0.5).remote(str(model_dir), config, seed, policy)
