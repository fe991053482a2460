"""How many threads the kernels use."""

import os

from journeyman.types import UserError

THREADS_VARIABLE = "JOURNEYMAN_THREADS"


def thread_count(threads: int | None = None) -> int:
    """`threads`, else `$JOURNEYMAN_THREADS`, else the cores this process may use.

    Raises UserError when it is not a positive number. Results do not depend on it.
    """
    configured = os.environ.get(THREADS_VARIABLE)
    if threads is None and not configured:
        return len(os.sched_getaffinity(0))
    wanted = str(threads) if threads is not None else str(configured)
    if not wanted.isdigit() or int(wanted) < 1:
        raise UserError(
            f"{wanted!r} is not a number of threads",
            f"give 1 or more (or unset {THREADS_VARIABLE})",
        )
    return int(wanted)
