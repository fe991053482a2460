"""The failure contract: every failure has one kind, decided where it happened."""

from enum import StrEnum
from typing import Any

from journeyman.types.value import Value


class FailureKind(StrEnum):
    """What a run does about a failure follows from its kind alone."""

    POLICY = "policy"
    """The model's doing: scored (usually 0) and trained on, never dropped."""
    INFRA = "infra"
    """A machine's doing: the episode is replaced, at most N times, then dropped and counted."""
    VERIFIER = "verifier"
    """No trustworthy verdict: the reward is null, the sample is dropped, never 0."""
    BUG = "bug"
    """Our own doing: the run stops with the trace."""


class Failure(Value):
    """One recorded failure: its kind, a short stable cause for counting, and the details."""

    kind: FailureKind
    cause: str
    detail: str = ""


class JourneymanError(Exception):
    """An error a person can act on. `cause` says what is wrong, `cure` what to do about it.

    Picklable (it crosses Ray actors): all state is in `args`.
    """

    kind = FailureKind.BUG

    def __init__(self, cause: str, cure: str = "") -> None:
        super().__init__(cause, cure)
        self.cause = cause
        self.cure = cure

    def __str__(self) -> str:
        return f"{self.cause}\n  {self.cure}" if self.cure else self.cause

    def failure(self, **detail: Any) -> Failure:
        """The record of this error for episodes, verdicts and the dashboard."""
        extra = "".join(f"; {key}={value}" for key, value in detail.items())
        return Failure(kind=self.kind, cause=type(self).__name__, detail=f"{self}{extra}")


class UserError(JourneymanError):
    """Bad input: a broken file, an unknown key, a missing model. Exit status 2, no trace."""


class InfraError(JourneymanError):
    """A machine, process or service failed underneath us."""

    kind = FailureKind.INFRA


class SandboxError(InfraError):
    """The sandbox engine, the sandbox service or one sandbox failed."""


class SandboxGone(SandboxError):
    """The sandbox named in the message no longer exists (never silently replaced)."""


class SandboxExhausted(SandboxGone):
    """What ran in the sandbox took it down: a fork bomb, or hands laid on the agent inside."""

    kind = FailureKind.POLICY


class EngineError(InfraError):
    """The inference engine or its server failed."""


class VerifierError(JourneymanError):
    """The verifier gave no trustworthy verdict, and would not on the oracle's tree either."""

    kind = FailureKind.VERIFIER
