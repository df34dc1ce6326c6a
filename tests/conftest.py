"""For all tests: property tests have no deadline, because machines that run tests are shared."""

from hypothesis import settings

settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")
