"""What holds for all tests."""

from hypothesis import settings

settings.register_profile("busy machines", deadline=None)  # a slow example says nothing about the code
settings.load_profile("busy machines")
