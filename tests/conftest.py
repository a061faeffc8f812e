"""What holds for all tests."""

import gc

from hypothesis import settings

settings.register_profile("busy machines", deadline=None)  # a slow example says nothing about the code
settings.load_profile("busy machines")


def pytest_collection_finish() -> None:
    """Modules stay: a collection of garbage need not walk them, of which torch and transformers have a great many."""
    gc.collect()
    gc.freeze()
