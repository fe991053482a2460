"""`bash`: one command in the sandbox, with no one there to answer it."""

from pydantic import Field

from journeyman.agent.tools.text import bound, clean
from journeyman.agent.tools.tool import Arguments, Tool, Workspace

# Pagers, editors and prompts would wait for a person; colours and caches only cost tokens.
ENVIRONMENT = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_EDITOR": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "DEBIAN_FRONTEND": "noninteractive",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "COLUMNS": "100",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "PIP_NO_INPUT": "1",
    "LC_ALL": "C.UTF-8",
}

# One stream, so that errors stand where they happened.
_JOIN_STREAMS = 'exec 2>&1; eval "$1"'


class BashArguments(Arguments):
    command: str
    timeout: float | None = Field(default=None, gt=0)


async def bash(workspace: Workspace, arguments: BashArguments) -> str:
    """Output cleaned and bounded, then how it ended if it did not end well."""
    limit_s = min(arguments.timeout or workspace.command_s, workspace.command_s)
    result = await workspace.sandbox.exec(
        ["bash", "-c", _JOIN_STREAMS, "bash", arguments.command],
        cwd=workspace.workdir,
        env=ENVIRONMENT,
        timeout_s=limit_s,
    )
    text = clean(result.text).strip("\n")
    if result.dropped_bytes:
        text += f"\n[{result.dropped_bytes} bytes dropped]"
    output = bound(text, workspace.output_chars)
    if result.timed_out:
        ending = f"timed out after {limit_s:g} s"
    elif result.signal is not None:
        ending = f"killed by signal {result.signal}"
    elif result.exit_code:
        ending = f"exit {result.exit_code}"
    else:
        ending = "" if output else "no output"
    return "\n".join(part for part in (output, ending) if part)


BASH = Tool(
    name="bash",
    description="Run a command with bash in the working directory. Input is empty.",
    arguments=BashArguments,
    run=bash,
    aliases={"cmd": "command", "script": "command", "code": "command", "timeout_s": "timeout"},
    ornaments=frozenset({"description", "explanation", "is_background", "run_in_background"}),
)
