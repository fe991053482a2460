"""`submit`: the agent says that it is done."""

from journeyman.agent.tools.tool import Arguments, Tool, Workspace


class SubmitArguments(Arguments):
    pass


async def submit(_: Workspace, __: SubmitArguments) -> str:
    """Ends the turn loop; the sandbox stays as it is."""
    return "submitted"


SUBMIT = Tool(
    name="submit",
    description="End the work.",
    arguments=SubmitArguments,
    run=submit,
    ornaments=frozenset({"message", "answer", "summary", "explanation"}),
)
