"""Choosing and compiling the kernels."""

import ctypes
import multiprocessing
import os

import pytest
import torch

from journeyman.model.kernels import INSTRUCTION_SETS, choose, compiler
from journeyman.model.kernels.instructions import available
from journeyman.model.kernels.library import library
from journeyman.model.kernels.threads import thread_count
from journeyman.types import UserError


def test_portable_is_always_there_and_last():
    assert available()[-1].name == INSTRUCTION_SETS[-1].name == "portable"
    assert choose() == available()[0]


def test_the_environment_can_force_an_instruction_set(monkeypatch):
    monkeypatch.setenv("JOURNEYMAN_ISA", "portable")
    assert choose().name == "portable"
    monkeypatch.setenv("JOURNEYMAN_ISA", "mmx")
    with pytest.raises(UserError, match=r"'mmx'\n.*portable"):
        choose()


def test_what_the_processor_lacks_is_refused_by_name(monkeypatch):
    monkeypatch.setattr("journeyman.model.kernels.instructions.cpu_flags", frozenset)
    with pytest.raises(UserError, match=r"no avx2 .*lacks avx2, bmi2, f16c, fma\)\n.*portable"):
        choose("avx2")


@pytest.mark.parametrize("threads", ["0", "-1", "two", "1.5"])
def test_a_senseless_thread_count_is_refused(monkeypatch, threads):
    monkeypatch.setenv("JOURNEYMAN_THREADS", threads)
    with pytest.raises(UserError, match=threads):
        thread_count()


@pytest.mark.parametrize("isa", INSTRUCTION_SETS, ids=lambda isa: isa.name)
def test_it_compiles_once_even_where_it_cannot_run(isa):
    first = compiler.build(isa)
    assert first.name == f"{isa.name}.so"
    written = first.stat().st_mtime_ns
    assert compiler.build(isa).stat().st_mtime_ns == written


def _build_small(home):
    os.environ["JOURNEYMAN_HOME"] = str(home)
    return compiler.build(choose("portable"), home / "small" / "native")


def test_two_processes_build_at_once(tmp_path):
    sources = tmp_path / "small" / "native"
    sources.mkdir(parents=True)
    (sources / "answer.cpp").write_text(
        'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }'
    )
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(_build_small, [tmp_path] * 2)
    assert first == second
    assert ctypes.CDLL(str(first)).answer() == 42
    assert sorted(p.name for p in tmp_path.glob("build/*/*")) == ["lock", "portable.so"]


def test_sources_that_do_not_compile_leave_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("JOURNEYMAN_HOME", str(tmp_path))
    sources = tmp_path / "broken" / "native"
    sources.mkdir(parents=True)
    (sources / "broken.cpp").write_text("int answer( {")
    with pytest.raises(UserError, match=r"(?s)portable kernels do not compile.*broken\.cpp"):
        compiler.build(choose("portable"), sources)
    assert [p.name for p in tmp_path.glob("build/*/*")] == ["lock"]


def test_no_compiler_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("JOURNEYMAN_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"'no-such-compiler' is not on the PATH\n.*g\+\+"):
        compiler.build(choose("portable"))
    assert not list(tmp_path.rglob("*.so"))


def test_the_exponential_is_right_to_two_units_in_the_last_place(isa):
    x = torch.cat((torch.linspace(-87.3, 88, 160_000), torch.linspace(-1e-3, 1e-3, 1600)))
    result = torch.empty_like(x)
    kernels = library(choose(isa))
    kernels.journeyman_exponential(x.data_ptr(), len(x), result.data_ptr())
    want = x.double().exp()
    assert float(((result.double() - want).abs() / want).max()) < 2**-22
    edge = torch.tensor([float("-inf"), -88, -1e30, 0.0, float("nan")] + [1e30] * 11)
    kernels.journeyman_exponential(edge.data_ptr(), 16, result.data_ptr())
    assert result[:4].tolist() == [0, 0, 0, 1]
    assert bool(result[4].isnan())
    assert bool(result[5:16].isfinite().all())
