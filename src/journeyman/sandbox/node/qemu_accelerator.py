"""KVM or emulation: decided by booting a guest, once for each start of this host."""

import hashlib
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

from journeyman.config.home import home_dir

_PROBE = "journeyman.sandbox.node.machine_probe"
_PROBE_S = 30.0


def choose_accelerator(version: str) -> str:
    """`kvm` where a stock kernel boots with it, else `tcg`; blocks for up to half a minute. The
    answer is kept until the host starts again or QEMU changes: that KVM is broken, only patience
    tells."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    kept = home_dir() / "qemu" / "accelerator.json"
    key = f"{boot} {version}"
    try:
        known = json.loads(kept.read_bytes())
    except (OSError, ValueError):
        known = {}
    if known.get("key") != key:
        known = {"key": key, "accelerator": "kvm" if _kvm_boots() else "tcg"}
        kept.parent.mkdir(parents=True, exist_ok=True)
        temporary = kept.with_name(f".{kept.name}.{secrets.token_hex(6)}")
        temporary.write_text(json.dumps(known), encoding="utf-8")
        os.rename(temporary, kept)
    return str(known["accelerator"])


def _kvm_boots() -> bool:
    if not Path("/dev/kvm").exists():
        return False
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        probe = subprocess.run(
            [sys.executable, "-m", _PROBE, "kvm"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=_PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return probe.returncode == 0


def processor_digest() -> str:
    """What KVM shows a guest of this host's processor; emulation shows the same everywhere."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    kept = ("vendor_id", "model name", "flags")
    found = {line.split(":")[0].strip(): line for line in lines if line.startswith(kept)}
    return hashlib.sha256("".join(sorted(found.values())).encode()).hexdigest()[:12]
