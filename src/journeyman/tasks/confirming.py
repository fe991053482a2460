"""Whether a written task is good: by the verifier and the fresh sandboxes that episodes meet."""

from journeyman.sandbox.client import SandboxClient
from journeyman.tasks.environment import prepare
from journeyman.tasks.grading import HarborVerifier, Judgement
from journeyman.tasks.journal import Journal, content_key
from journeyman.types import Environment, Task

_OK = ""


class Confirmation:
    """Three runs in three sandboxes: the whole project, the broken one, the mended one."""

    def __init__(self, sandboxes: SandboxClient, journal: Journal) -> None:
        self._sandboxes = sandboxes
        self._verifier = HarborVerifier(sandboxes)
        self._journal = journal

    async def rejected(self, task: Task, tests: tuple[str, ...], failing: tuple[str, ...]) -> str:
        """Why the task is no good, or an empty string. `failing` were seen to fail before."""
        environment = await prepare(task, self._sandboxes)
        key = content_key("confirmed", environment.template, task.digest)
        known = self._journal.get(key)
        if known is None:
            known = await self._examine(task, environment, tests, failing)
            self._journal.put(key, known)
        return str(known)

    async def _examine(
        self, task: Task, environment: Environment, tests: tuple[str, ...], failing: tuple[str, ...]
    ) -> str:
        whole = environment.model_copy(update={"files": {}})
        key = content_key("whole", environment.template, *tests)
        passes = self._journal.get(key)
        if passes is None:
            passes = (await self._verifier.run_tests(task, whole, {})).reward == 1.0
            self._journal.put(key, passes)
        if not passes:
            return "tests fail on the whole project"
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
