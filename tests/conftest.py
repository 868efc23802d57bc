"""What holds for all tests."""

import os
import tempfile

from hypothesis import settings

# Wall-clock never decides a test.
settings.register_profile("codedreduce", deadline=None)
settings.load_profile("codedreduce")

# A secret that is made where there is none is not the user's.
_configuration = tempfile.TemporaryDirectory(prefix="codedreduce-tests-")
os.environ["XDG_CONFIG_HOME"] = _configuration.name
for name in ("CODEDREDUCE_SECRET", "CODEDREDUCE_SECRET_FILE", "CODEDREDUCE_INSECURE"):
    os.environ.pop(name, None)
