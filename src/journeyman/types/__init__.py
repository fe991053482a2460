"""Values that cross package boundaries, the failure contract, and the protocols.

Data flows one way: Task → Episode → Sample → Batch → PolicyVersion → inference.
"""

from journeyman.types.episode import Episode, StopReason, Turn
from journeyman.types.failure import (
    EngineError,
    Failure,
    FailureKind,
    InfraError,
    JourneymanError,
    SandboxError,
    SandboxExhausted,
    SandboxGone,
    UserError,
    VerifierError,
)
from journeyman.types.message import Message, Role, ToolCall, ToolSpec
from journeyman.types.policy import PolicyVersion
from journeyman.types.sample import Batch, Sample, TokenStream
from journeyman.types.sampling import Completion, CompletionRequest, Sampler
from journeyman.types.sandbox import Environment, ExecResult, Sandbox, Sandboxes
from journeyman.types.task import Budget, Provenance, Split, Task
from journeyman.types.value import Value
from journeyman.types.verdict import Verdict, Verifier

__all__ = [
    "Batch",
    "Budget",
    "Completion",
    "CompletionRequest",
    "EngineError",
    "Environment",
    "Episode",
    "ExecResult",
    "Failure",
    "FailureKind",
    "InfraError",
    "JourneymanError",
    "Message",
    "PolicyVersion",
    "Provenance",
    "Role",
    "Sample",
    "Sampler",
    "Sandbox",
    "SandboxError",
    "SandboxExhausted",
    "SandboxGone",
    "Sandboxes",
    "Split",
    "StopReason",
    "Task",
    "TokenStream",
    "ToolCall",
    "ToolSpec",
    "Turn",
    "UserError",
    "Value",
    "Verdict",
    "Verifier",
    "VerifierError",
]
