"""What each driver does not promise, and why. Everything else is demanded of it."""

MEMORY = "memory"
"""Processes and their memory survive hibernation and forks."""
LIMITS = "limits"
"""Memory, processes and disk of a sandbox are bounded whatever its root does."""
DISK = "disk"
"""The guest's files have a size limit of their own, which the guest is told."""
KERNEL = "kernel"
"""The guest has a kernel of its own."""
AGENT = "agent"
"""Root in the guest cannot end the agent inside."""

ABILITIES = frozenset({MEMORY, LIMITS, DISK, KERNEL, AGENT})

NOT_PROMISED: dict[str, dict[str, str]] = {
    "gvisor": {
        DISK: "files count against the sandbox's memory, and the guest sees a huge disk",
    },
    "qemu": {},
    "bubblewrap": {
        MEMORY: "namespaces cannot be saved",
        LIMITS: "without root there are no control groups",
        DISK: "files lie on the host's disk",
        KERNEL: "the guest speaks to the host's kernel",
        AGENT: "root in its namespaces may signal every process there",
    },
}


def not_promised(driver: str, needs: frozenset[str]) -> str:
    """Why this driver is not asked for these abilities; empty when it is. A driver that is not
    listed is asked for everything."""
    lacking = NOT_PROMISED.get(driver, {})
    return "; ".join(lacking[need] for need in sorted(needs) if need in lacking)
