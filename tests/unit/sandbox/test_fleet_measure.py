"""What a node says of itself is what the machine has."""

import os
import time
from pathlib import Path

from journeyman.sandbox.fleet.measure import Machine


def test_capacity_leaves_something_to_the_machine(tmp_path: Path) -> None:
    capacity = Machine(tmp_path).capacity(keep=0.25)
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert capacity.cpus == len(os.sched_getaffinity(0))
    assert abs(capacity.memory_bytes / total - 0.75) < 0.05
    disk = os.statvfs(tmp_path)
    assert capacity.disk_bytes == int(disk.f_blocks * disk.f_frsize * 0.75)


def test_a_busy_process_shows(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    end = time.process_time() + 0.2
    began = time.monotonic()
    while time.process_time() < end:
        pass
    used_s = machine.look().cpus_used * (time.monotonic() - began)
    # The kernel counts in hundredths of a second; others may use the machine too.
    assert used_s > 0.1
    assert machine.look().memory_used_bytes > 10 << 20
