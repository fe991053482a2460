"""The doctor tells what works by trying it, within its time, and how to get the rest."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from journeyman.cli import doctor
from journeyman.cli.main import main


def run_main(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(args)
    return int(ended.value.code or 0)


def test_every_finding_says_what_it_gives_and_how_to_get_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("JOURNEYMAN_HOME", str(tmp_path / "nothing-here"))
    begun = time.monotonic()
    assert run_main("doctor", "--json") == 0
    assert time.monotonic() - begun < 40
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"cores", "avx2", "kvm", "gvisor", "bubblewrap", "qemu", "gpu"} <= set(told)
    assert {"ray", "sqlite", "postgresql", "compiler", "model", "tasks", "kernels"} <= set(told)
    for finding in told.values():
        assert set(finding) == {"present", "detail", "gives", "cure"}
        assert finding["gives"]
        assert finding["detail"]
    assert told["model"]["present"] is False
    assert told["model"]["cure"] == "journeyman model fetch smollm2-135m"
    assert not (tmp_path / "nothing-here").exists()  # looking changes nothing


def test_the_text_names_the_cure(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("JOURNEYMAN_HOME", str(tmp_path))
    nothing = "the model"
    probe = doctor.Probe(name="model", gives=nothing, cure="get [it] so", look=doctor._model)
    doctor._show(doctor.examine([probe]))
    told = capsys.readouterr().out
    assert "would give the model" in told
    assert "get it: get [it] so" in told


def test_a_probe_that_hangs_is_missing(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "LIMIT_S", 0.5)
    hangs = doctor.Probe(
        name="x", gives="y", cure="z", look=lambda: doctor._python("import time; time.sleep(60)")
    )
    (finding,) = doctor.examine([hangs])
    assert (finding.present, finding.detail) == (False, "gave no answer within 0 s")


@pytest.mark.parametrize("name", ["gvisor", "bubblewrap"])
def test_sandbox_engines_that_were_set_up_are_found_working(name: str) -> None:
    probe = next(probe for probe in doctor.probes() if probe.name == name)
    (finding,) = doctor.examine([probe])
    assert finding.present, finding.detail


def test_a_broken_engine_is_not_taken_for_a_working_one(tmp_path: Path) -> None:
    (tmp_path / "runsc").write_text("#!/bin/sh\necho 'cannot create sandbox' >&2\nexit 1\n")
    (tmp_path / "runsc").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "journeyman.sandbox.node.machine_probe", "gvisor"],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 1
    assert done.stdout == "runsc: cannot create sandbox\n"
