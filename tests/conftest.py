"""What holds for all tests."""

import gc

import pytest
from hypothesis import settings

settings.register_profile("busy machines", deadline=None)  # a slow example says nothing about the code
settings.load_profile("busy machines")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep together, under `pytest --dist loadgroup`, what makes something costly once per process.

    Those are the tests of a module that has fixtures of its own for all of it, and those of a family: of models, which
    are exported, or of samples, which are analysed.
    """
    for item in items:
        if not isinstance(item, pytest.Function) or item.get_closest_marker("xdist_group"):
            continue
        given = item.callspec.params if hasattr(item, "callspec") else {}
        family = given.get("family") or (given.get("name") if "/torch_fx/" in item.nodeid else None)
        fixtures = item._fixtureinfo.name2fixturedefs.values()
        if any(each.scope == "module" for several in fixtures for each in several):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
        elif isinstance(family, str):
            item.add_marker(pytest.mark.xdist_group(family))


def pytest_collection_finish() -> None:
    """Modules stay: a collection of garbage need not walk them, of which torch and transformers have a great many."""
    gc.collect()
    gc.freeze()
