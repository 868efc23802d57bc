"""What holds for all tests."""

import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from tests.tiers import is_in_make_test

# Wall-clock never decides a test.
settings.register_profile("codedreduce", deadline=None)
settings.load_profile("codedreduce")

# Whatever has started the tests may ignore signals (a shell's job in the background, nohup), which processes inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Several tests run at once, of many processes each: threads that wait for each other would take the cores of others.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A secret that is made where there is none is not the user's.
_configuration = tempfile.TemporaryDirectory(prefix="codedreduce-tests-")
os.environ["XDG_CONFIG_HOME"] = _configuration.name
for name in ("CODEDREDUCE_SECRET", "CODEDREDUCE_SECRET_FILE", "CODEDREDUCE_INSECURE"):
    os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` leaves to `make test-all`."""
    here = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(here).as_posix() if item.path.is_relative_to(here) else "unit"
        if not is_in_make_test(path, getattr(item, "originalname", item.name)):
            item.add_marker("rest")
