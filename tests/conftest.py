"""Order of the tests, and what the whole test run shares.

Fixtures here give what `make setup` provides. Where it is missing a test fails and says so: a
skipped test would hide a broken set-up.
"""

import pytest

PHASES = ("unit", "integration")
"""Cheap tests first, so that a broken line of code is told of in seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_phase)


def _phase(item: pytest.Item) -> int:
    parts = item.path.parts
    return next((i for i, name in enumerate(PHASES) if name in parts), len(PHASES))


def pytest_report_header() -> str:
    from journeyman.config import home_dir

    return f"journeyman home: {home_dir()}"
