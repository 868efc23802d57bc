"""Smoke tests on several versions of Python: `make test-pythons`, or `python tests/pythons.py 3.12 3.13`.

Each version has a virtual environment of its own, with the versions of constraints.txt and without torch, whose wheels
may be for one version only. Versions that this machine does not have are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

#: Where the environments are; git ignores it.
ENVIRONMENTS = ROOT / ".pythons"

#: Besides the package itself.
TOOLS = ("hypothesis", "psutil", "pytest", "pytest-timeout", "pytest-xdist")

#: The commands, and what is most likely to depend on the version: threads, processes, files, names of base classes,
#: counts of references.
TESTS = (
    "tests/smoke.py",
    "tests/contract/test_codes.py",
    "tests/integration/test_cli_train.py",
    "tests/integration/test_nursery.py",
    "tests/integration/test_tracebacks.py",
    "tests/unit/test_arena.py",
    "tests/unit/test_checkpoints.py",
    "tests/unit/test_driver_timers.py",
    "tests/unit/test_host_memory.py",
    "tests/unit/test_inherited_names.py",
    "tests/unit/test_package.py",
    "tests/unit/test_secrets.py",
)


def is_version(python: str, version: str) -> bool:
    """Whether this is an interpreter of that version which starts: what pyenv puts on the path may not."""
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run([python, "-c", question], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return answer.returncode == 0 and answer.stdout.strip() == version


def find(version: str) -> str | None:
    """An interpreter of a version: on the path, or one of pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [
        sys.executable,
        shutil.which(f"python{version}"),
        *sorted(map(str, pyenv.glob(f"{version}.*/bin/python"))),
    ]
    return next((python for python in candidates if python and is_version(python, version)), None)


def environment(version: str, python: str) -> Path:
    """The environment of a version, made or brought up to date if it must be."""
    folder = ENVIRONMENTS / version
    mark, needed = folder / "installed", [ROOT / "pyproject.toml", ROOT / "constraints.txt", Path(__file__)]
    if mark.exists() and all(mark.stat().st_mtime > path.stat().st_mtime for path in needed):
        return folder / "bin" / "python"
    print(f"Python {version}: installing into {folder.relative_to(ROOT)} ...", flush=True)
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", "constraints.txt", "--editable", ".", *TOOLS], check=True, cwd=ROOT)
    mark.touch()
    return folder / "bin" / "python"


def passes(version: str, python: Path) -> bool:
    """Run the tests on a version."""
    began = time.monotonic()
    tests = [str(python), "-m", "pytest", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider", *TESTS]
    code = subprocess.run(tests, check=False, cwd=ROOT).returncode
    print(f"Python {version}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    return code == 0


def main(versions: list[str]) -> int:
    """0 if the tests pass on each version that is here, and there is one."""
    results = []
    for version in versions:
        python = find(version)
        if python is None:
            print(f"Python {version}: skipped, it is not installed", flush=True)
            continue
        results.append(passes(version, environment(version, python)))
    if not results:
        print(f"none of the versions is installed: {', '.join(versions)}")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
