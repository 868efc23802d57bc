"""What holds for all tests."""

from hypothesis import settings

# Wall-clock never decides a test.
settings.register_profile("codedreduce", deadline=None)
settings.load_profile("codedreduce")
