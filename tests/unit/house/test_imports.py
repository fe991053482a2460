"""What runs on a machine without torch and Ray must import without them."""

import subprocess
import sys

import pytest

LIGHT = ["types", "config", "store", "observe", "chat", "agent", "sandbox", "tasks"]


@pytest.mark.parametrize("package", LIGHT)
def test_imports_without_torch_and_ray(package: str) -> None:
    """The import works where torch, Ray and Transformers cannot be imported at all."""
    code = (
        "import sys\n"
        "for heavy in ('torch', 'ray', 'transformers'):\n"
        "    sys.modules[heavy] = None\n"  # makes `import heavy` raise ImportError
        "import importlib, pkgutil\n"
        f"package = importlib.import_module('journeyman.{package}')\n"
        "found = pkgutil.walk_packages(package.__path__, package.__name__ + '.')\n"
        "names = [module.name for module in found]\n"
        "for name in names:\n"
        "    if not name.endswith('__main__'):\n"
        "        importlib.import_module(name)\n"
        "print(len(names) >= 1)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "True", result.stdout


def test_importing_a_package_writes_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No output and no file from a mere import of the command line."""
    home = tmp_path_factory.mktemp("home")
    result = subprocess.run(
        [sys.executable, "-c", "import journeyman.cli.main"],
        capture_output=True,
        text=True,
        env={"JOURNEYMAN_HOME": str(home / "absent"), "HOME": str(home), "PATH": "/usr/bin:/bin"},
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert list(home.iterdir()) == []
