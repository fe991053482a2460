"""The names that other packages build on. A change here is a change of the contract."""

import journeyman.types

TYPES = {
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
}


def test_exports_of_types_are_pinned() -> None:
    assert set(journeyman.types.__all__) == TYPES
    assert all(hasattr(journeyman.types, name) for name in TYPES)
