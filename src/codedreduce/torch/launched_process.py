"""One process of `launch`: calls the function from a file; rank 0 writes the result to another file."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import cloudpickle

from codedreduce.errors import UsageError
from codedreduce.process.error_lines import USAGE, is_plain, place_in, say, speak_plainly
from codedreduce.process.telling import What, Word, own_rank, tell


def main(given: str, returned: str) -> int:
    """Run the function; return the exit code."""
    speak_plainly()
    function, args = cloudpickle.loads(Path(given).read_bytes())
    try:
        result = function(*args)
    except Exception as error:
        where = place_in(error.__traceback__)
        if is_plain(error):
            say(error, where)
            return USAGE if isinstance(error, UsageError) else 1
        trace = error.__traceback__.tb_next if error.__traceback__ is not None else None  # starts in the function
        traceback.print_exception(type(error), error, trace)
        tell(Word(own_rank(), What.ERRS, f"{type(error).__name__}: {error}", where, about=own_rank()))
        return 1
    if own_rank() == 0:
        _leave(cloudpickle.dumps(result), returned)
    return 0


def _leave(result: bytes, path: str) -> None:
    """Write all of the result or nothing. An existing path is memory of the launcher, which waits for this process."""
    if os.path.exists(path):
        Path(path).write_bytes(result)
        return
    beside = Path(f"{path}.part")
    beside.write_bytes(result)
    os.replace(beside, path)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
