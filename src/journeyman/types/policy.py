"""Which weights spoke."""

from journeyman.types.value import Value


class PolicyVersion(Value):
    """`digest` is sha256 over the exact tensor bytes served, in name order."""

    number: int
    digest: str
    recipe: str = "bf16"
