"""Whether a written task is good: by the verifier and the fresh sandboxes that episodes meet."""

from journeyman.sandbox.client import SandboxClient
from journeyman.tasks.environment import prepare
from journeyman.tasks.grading import HarborVerifier, Judgement
from journeyman.tasks.journal import Journal, content_key
from journeyman.types import Environment, InfraError, Task

_OK = ""


class Confirmation:
    """Two runs in two fresh sandboxes: the broken project, and the mended one. That the tests
    pass before was seen in the survey's own sandbox."""

    def __init__(self, sandboxes: SandboxClient, journal: Journal) -> None:
        self._sandboxes = sandboxes
        self._verifier = HarborVerifier(sandboxes)
        self._journal = journal

    async def rejected(self, task: Task, failing: tuple[str, ...]) -> str:
        """Why the task is no good, or an empty string. `failing` were seen to fail before."""
        environment = await prepare(task, self._sandboxes)
        key = content_key("confirmed", task.digest)
        known = self._journal.get(key)
        if known is None:
            try:
                known = await self._examine(task, environment, failing)
            except InfraError:
                known = await self._examine(task, environment, failing)
            self._journal.put(key, known)
        return str(known)

    async def _examine(self, task: Task, environment: Environment, failing: tuple[str, ...]) -> str:
        broken = await self._verifier.run_tests(task, environment, {})
        if broken.reward != 0.0:
            return "the verifier hangs" if broken.problem else "not noticed in a fresh sandbox"
        if _failed(broken) != set(failing):
            return "other tests fail in a fresh sandbox"
        mended = await self._verifier.run_tests(task, environment, {}, solve=True)
        if mended.reward != 1.0 or mended.flags:
            return "the solution is not accepted"
        return _OK


def _failed(judgement: Judgement) -> set[str]:
    report = judgement.report.get("result", {}).get("report") or {}
    return {test for test, how in report.get("outcomes", {}).items() if how == "failed"}
