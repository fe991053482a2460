"""The oracle as a sampler: it says the tool calls that solve each task, through the real agent."""

from collections import Counter
from collections.abc import Sequence

from journeyman.chat import ChatFormat, format_call
from journeyman.inference import ScriptedSampler
from journeyman.tasks.oracle import oracle_calls
from journeyman.types import CompletionRequest, EngineError, Task


def oracle_sampler(chat: ChatFormat, tasks: Sequence[Task]) -> ScriptedSampler:
    """A sampler that recognises a task by its instruction."""
    scripts = {
        task.instruction.strip(): [format_call(name, args) for name, args in oracle_calls(task)]
        for task in tasks
    }

    def script_of(request: CompletionRequest) -> list[str]:
        instruction = next(m.content.strip() for m in request.messages if m.role == "user")
        if instruction not in scripts:
            raise EngineError(f"the oracle knows no task that says {instruction[:200]!r}")
        return scripts[instruction]

    return ScriptedSampler(chat, script_of)


def distinct(tasks: Sequence[Task]) -> list[Task]:
    """Without those whose instruction another task shares: their answers would contradict."""
    times = Counter(task.instruction.strip() for task in tasks)
    return [task for task in tasks if times[task.instruction.strip()] == 1]
