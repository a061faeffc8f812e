"""What holds for all tests."""

from __future__ import annotations

import gc
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

settings.register_profile("busy machines", deadline=None)  # a slow example says nothing about the code
settings.load_profile("busy machines")

OF_A_FAMILY = re.compile(r"torch_fx/test_(?:real_models|gradients|both_fronts)\.py::.*\[(.+?)(?:-\d)?\]$")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Of several processes, one runs what makes something costly once: a file's tests, or all of a model family."""
    from xdist.scheduler import LoadScopeScheduling

    class ByWhatIsShared(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            family = OF_A_FAMILY.search(nodeid)
            return family[1] if family else nodeid.partition("::")[0]

    return ByWhatIsShared(config, log)


def pytest_collection_finish() -> None:
    """Modules stay: a collection of garbage need not walk them, of which torch and transformers have a great many."""
    gc.collect()
    gc.freeze()
