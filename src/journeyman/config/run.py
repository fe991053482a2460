"""The configuration of a run: one frozen model per component, one TOML file for all of them."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """Frozen; an unknown key is an error, a key without effect is one too."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def refuse_idle(self, reason: str, *keys: str) -> None:
        """Raise if any of `keys` was set although `reason` leaves it without effect."""
        idle = sorted(set(keys) & self.model_fields_set)
        if idle:
            raise ValueError(f"{', '.join(idle)} would have no effect because {reason}")


class ModelConfig(Section):
    """Where learning starts."""

    checkpoint: str = Field(
        "smollm2-135m",
        description="A fetched model's name, or the path of a Hugging Face checkpoint directory.",
    )


class TasksConfig(Section):
    """Which tasks are learned from and which are held out. Chosen before anything is trained."""

    set: str = Field("quickstart", description="A built task set's name, or a directory.")
    warm: Annotated[int, Field(ge=0)] = Field(
        400, description="Tasks whose oracle patches are replayed for the warm start."
    )
    train: Count = Field(
        300,
        description="Tasks for reinforcement, of the same projects: the set's training tasks, then "
        "warm-start tasks that are not replayed.",
    )
    held_out: Count = Field(128, description="Tasks of projects that are never trained on.")


class SandboxConfig(Section):
    """Where tools and verifiers run."""

    driver: Literal["auto", "gvisor", "qemu", "bubblewrap"] = Field(
        "auto", description="auto takes the strongest that works; bubblewrap is for development."
    )
    concurrency: Count = Field(96, description="Episodes that may be under way at the same time.")


class AgentConfig(Section):
    """How long one episode may be."""

    tokens: Annotated[int, Field(ge=256)] = Field(
        768, description="Length of the whole token stream, prompt and tool results included."
    )
    reply_tokens: Count = Field(144, description="Most tokens of one reply.")
    turns: Count = Field(6, description="Most replies of one episode.")
    deadline_s: Seconds = Field(180.0, description="Wall time of one episode, in seconds.")


class EngineConfig(Section):
    """The inference engine."""

    backend: Literal["auto", "native", "torch"] = Field(
        "auto", description="auto takes the native kernels where they run, else PyTorch."
    )
    kv_tokens: Count = Field(98304, description="Tokens the KV cache holds (23 KB each).")
    max_sequences: Count = Field(128, description="Sequences decoded together.")


class OptimiserConfig(Section):
    """AdamW on FP32 master weights."""

    weight_decay: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Decoupled decay of the matrices, per unit of learning rate."
    )
    betas: tuple[Rate, Rate] = Field(
        (0.9, 0.99), description="Decay of the gradient's first and second moment."
    )
    clip_norm: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Longer gradients are scaled down to this norm."
    )
    pack_nodes: Count = Field(2048, description="Most distinct tokens computed in one pack.")


class WarmStartConfig(Section):
    """Supervised learning of the oracle's episodes."""

    epochs: Annotated[int, Field(ge=0)] = Field(1, description="0 skips the warm start.")
    learning_rate: Annotated[float, Field(gt=0)] = Field(1e-4, description="Peak learning rate.")
    episodes_per_step: Count = Field(16, description="Episodes in one optimiser step.")

    @model_validator(mode="after")
    def _idle(self) -> "WarmStartConfig":
        if self.epochs == 0:
            self.refuse_idle("epochs = 0", "learning_rate", "episodes_per_step")
        return self


class ReinforcementConfig(Section):
    """Policy-gradient steps on the verifier's rewards."""

    steps: Annotated[int, Field(ge=0)] = Field(12, description="0 skips reinforcement.")
    max_s: Seconds = Field(
        3600.0, description="No step is started after this many seconds of reinforcement."
    )
    groups_per_step: Count = Field(12, description="Prompts in one step.")
    group_size: Annotated[int, Field(ge=2)] = Field(8, description="Episodes of one prompt.")
    skip_settled: bool = Field(
        False,
        description="Later epochs leave out tasks whose episodes all had the same verdict in the "
        "epoch before.",
    )
    temperature: Annotated[float, Field(gt=0)] = Field(
        1.0, description="Of sampling; the loss uses the same distribution."
    )
    learning_rate: Annotated[float, Field(gt=0)] = Field(2e-5, description="Peak learning rate.")
    warmup_steps: Annotated[int, Field(ge=0)] = Field(
        0, description="Steps over which the learning rate rises from 0."
    )
    clip_low: Rate = Field(0.2, description="The ratio is clipped below 1 - clip_low.")
    clip_high: Rate = Field(0.28, description="The ratio is clipped above 1 + clip_high.")
    normalise_std: bool = Field(
        False, description="Divide advantages by the group's standard deviation (GRPO)."
    )
    negative_weight: Annotated[float, Field(ge=0, le=1)] = Field(
        1.0, description="Factor on advantages below 0; with 0 only the better episodes teach."
    )
    updates_per_step: Count = Field(
        1, description="Optimiser updates of one step, each on a share of its groups."
    )
    format_reward: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.0, description="Added for an episode whose calls were all valid and that submitted."
    )
    infra_retries: Annotated[int, Field(ge=0)] = Field(
        2, description="Replacements of an episode that a machine's failure ended."
    )
    checkpoint_every: Count = Field(5, description="Steps between full checkpoints.")

    @model_validator(mode="after")
    def _idle(self) -> "ReinforcementConfig":
        if self.steps == 0:
            self.refuse_idle("steps = 0", *(set(type(self).model_fields) - {"steps"}))
        elif self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps = {self.warmup_steps} never ends within steps = {self.steps}"
            )
        if self.updates_per_step > self.groups_per_step:
            raise ValueError(
                f"updates_per_step = {self.updates_per_step} is more than "
                f"groups_per_step = {self.groups_per_step}: an update takes whole groups"
            )
        return self


class EvaluationConfig(Section):
    """How held-out solve rates are measured. Denominators are fixed before."""

    samples: Count = Field(4, description="Episodes of each held-out task at temperature 1.")
    every: Annotated[int, Field(ge=0)] = Field(
        0, description="Also evaluate after every so many reinforcement steps; 0 for never."
    )
    base: bool = Field(True, description="Evaluate the starting weights too.")
    greedy: bool = Field(False, description="Also one greedy episode for each task.")
    pass_at: Annotated[int, Field(ge=0)] = Field(
        0, description="Report pass@k for this k, which needs samples ≥ k; 0 for none."
    )

    @model_validator(mode="after")
    def _enough(self) -> "EvaluationConfig":
        if self.pass_at > self.samples:
            raise ValueError(
                f"pass_at = {self.pass_at} needs samples ≥ {self.pass_at}, not {self.samples}"
            )
        return self


class ControlsConfig(Section):
    """Supervised runs that reinforcement is compared with."""

    plateau: bool = Field(
        False, description="Train the warm start until held-out tasks stop improving."
    )
    plateau_epochs: Count = Field(6, description="Most epochs of the plateau search.")
    continued: bool = Field(
        False, description="Continue supervised training for reinforcement's wall time."
    )

    @model_validator(mode="after")
    def _idle(self) -> "ControlsConfig":
        if not self.plateau:
            self.refuse_idle("plateau = false", "plateau_epochs")
        return self


class StoreConfig(Section):
    """The system of record."""

    url: str | None = Field(
        None, description="SQLAlchemy URL; SQLite in the home directory when not given."
    )


class RunConfig(Section):
    """Everything one run needs."""

    name: str = Field(
        "quickstart", pattern=r"^[a-z0-9][a-z0-9_.-]*$", description="The run's folder below runs/."
    )
    seed: Annotated[int, Field(ge=0)] = Field(
        0, description="Of the choice of tasks, the order of data and all sampling."
    )
    model: ModelConfig = ModelConfig()
    tasks: TasksConfig = TasksConfig()
    sandbox: SandboxConfig = SandboxConfig()
    agent: AgentConfig = AgentConfig()
    engine: EngineConfig = EngineConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    reinforcement: ReinforcementConfig = ReinforcementConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    controls: ControlsConfig = ControlsConfig()
    store: StoreConfig = StoreConfig()

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        if self.warm_start.epochs == 0:
            self.tasks.refuse_idle("warm_start.epochs = 0", "warm")
            self.controls.refuse_idle("warm_start.epochs = 0", "plateau", "continued")
        elif self.tasks.warm == 0:
            raise ValueError("tasks.warm = 0 leaves warm_start.epochs without effect; set it to 0")
        if self.reinforcement.steps == 0:
            self.tasks.refuse_idle("reinforcement.steps = 0", "train")
            self.evaluation.refuse_idle("reinforcement.steps = 0", "every")
            self.controls.refuse_idle("reinforcement.steps = 0", "continued")
        if self.agent.reply_tokens >= self.agent.tokens:
            raise ValueError(
                f"agent.reply_tokens = {self.agent.reply_tokens} leaves no room for a prompt in "
                f"agent.tokens = {self.agent.tokens}"
            )
        return self
