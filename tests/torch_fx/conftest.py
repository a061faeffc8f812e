"""Tests of one model family, or one family of samples, run in one process: it is exported and analysed there once."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Name the group of each test for `pytest --dist loadgroup`; without it nothing changes."""
    for item in items:
        given = getattr(item, "callspec", None)
        of = given and (given.params.get("name") or given.params.get("family"))
        if isinstance(of, str) and item.path.is_relative_to(__file__.removesuffix("conftest.py")):
            item.add_marker(pytest.mark.xdist_group(of))
