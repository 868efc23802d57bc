"""Samples that other processes load ahead: the same bits, whoever reads them, and nothing is left of the processes."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import codedreduce.torch as cr
from codedreduce import CodedReduce, MasterWorker, Scheme, Striped, Tree
from codedreduce.errors import UsageError
from codedreduce.torch.data.prefetch import STOPPED, Loader, Prefetch
from codedreduce.torch.data.samples import Name, Order, Reading
from tests.waiting import PATIENCE

from .test_torch_striped import bits_of, digest
from .torch_model import BATCH, Model, data, losses, run_forked

RANKS, STEPS, SEED = 4, 6, 3


class Augmented:
    """Every sample is moved by what torch, NumPy and Python draw. Who read it is written down."""

    def __init__(self, folder: Path) -> None:
        self._data = data(torch.float64)
        self._readers = folder / "readers"

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with self._readers.open("a") as file:
            file.write(f"{os.getpid()}\n")
        x, y = self._data[index]
        return x + torch.rand(10) + np.random.rand() + random.random(), y


def noisy(samples: list) -> list[torch.Tensor]:
    """A collate function that draws, too."""
    x, y = default_collate(samples)
    return [x + 0.1 * torch.rand(1), y]


def children() -> set[int]:
    """The processes that this one has started."""
    found = set()
    for one in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            *_, parent = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid():
                found.add(int(one))
    return found


def is_there(process: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def all_gone(processes: set[int], within: float = PATIENCE) -> bool:
    deadline = time.monotonic() + within
    while any(map(is_there, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_there, processes))


def trained(folder: Path, scheme: Scheme | None, workers: int, **options: object) -> Callable[[], None]:
    def script() -> None:
        model = Model(torch.float64, dropout=0.2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        chosen = {"collate_fn": noisy, "micro_batch": 5, **options}
        with cr.join(scheme) as cluster:
            steps = cluster.train(
                model, Augmented(folder), losses, BATCH, STEPS, SEED, state=[optimizer], num_workers=workers, **chosen
            )
            for _ in steps:
                optimizer.step()
        assert not children(), "all that loaded samples have ended"
        if cluster.is_root or isinstance(scheme, Striped):
            (folder / f"{cluster.rank}").write_text(digest(*model.parameters()))

    return script


@pytest.mark.parametrize(
    ("scheme", "processes", "options"),
    [
        (Striped(RANKS), RANKS, {}),
        (Striped(2, units=3), 2, {"coupled": "micro-batch", "micro_batch": 6, "drop_last": False}),
        (CodedReduce(Tree.regular(fanout=2, depth=1)), 3, {}),
    ],
)
def test_the_same_bits_whoever_reads_and_whoever_is_late(
    tmp_path: Path, scheme: Scheme, processes: int, options: dict
) -> None:
    trained(tmp_path, scheme, 0, **options)()  # alone
    alone = (tmp_path / "0").read_text()
    for workers, inject in ((1, ""), (2, "stalls:0.4:0.1s")):
        variables = {"CODEDREDUCE_INJECT": inject} if inject else {}
        outcome = run_forked(trained(tmp_path, scheme, workers, **options), processes, variables)
        assert outcome.codes == dict.fromkeys(range(processes), 0), outcome.errors
        found = bits_of(tmp_path, processes) if isinstance(scheme, Striped) else (tmp_path / "0").read_text()
        assert found == alone
    trained(tmp_path, scheme, 2, **options)()
    assert (tmp_path / "0").read_text() == alone


def test_what_a_dataset_draws_follows_from_the_sample_alone(tmp_path: Path) -> None:
    """And from the seed and the round: not from the number of ranks, or of samples that are read together."""
    reading = Reading(Augmented(tmp_path), None, SEED, draws=True)
    x, _ = reading(Order(Name(2, range(5, 8)), (17, 3, 90)))
    for place, index, found in zip(range(5, 8), (17, 3, 90), x, strict=True):
        first, second = np.random.SeedSequence([SEED, 2, place, 2]).generate_state(2)
        noise = torch.rand(10, generator=torch.Generator().manual_seed(int(first)))
        more = np.random.RandomState(second).rand() + random.Random(int(second)).random()
        torch.testing.assert_close(found, data(torch.float64)[index][0] + noise + more, rtol=0, atol=1e-14)


def test_other_processes_read_what_is_foreseen(tmp_path: Path) -> None:
    scheme = MasterWorker(2)
    trained(tmp_path, scheme, 2)()
    readers = (tmp_path / "readers").read_text().split()
    of_this = readers.count(str(os.getpid()))
    assert 0 < of_this < BATCH, "some are rehearsed here"
    assert len(readers) == of_this + BATCH * STEPS
    assert len(set(readers)) == 3


def test_any_order_at_any_time(tmp_path: Path) -> None:
    """Rounds are skipped, left in the middle, asked for again and beyond the end: always the batch that it is."""

    def order(round_: int, place: int) -> Order:
        return Order(Name(round_, range(2 * place, 2 * place + 2)), (round_, 100 + place))

    reading = Reading(Augmented(tmp_path), None, SEED, draws=True)
    at_first = [(1, 0), (1, 1), (2, 1), (2, 0), (2, 0), (3, 0)]
    skipped = [(40, 0), (40, 1), (39, 0), (41, 1), (41, 2), (60, 0), (60, 1)]
    with Loader(reading, lambda one: [order(one, 0), order(one, 1)], range(1, 61), Prefetch(2, 3)) as loader:
        for one in (*at_first, *skipped, (61, 0), (60, 0)):
            found = loader(order(*one), lambda: False)
            assert all(map(torch.equal, found, reading(order(*one)))), one
    assert not children()


def test_who_waits_can_be_stopped(tmp_path: Path) -> None:
    class Slow(Augmented):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            if not (tmp_path / "go").exists():
                time.sleep(0.1)
            return super().__getitem__(index)

    order = Order(Name(1, range(60)), tuple(range(60)))
    with Loader(Reading(Slow(tmp_path), None, SEED, draws=True), lambda _: [order], range(1, 3), Prefetch(1)) as loader:
        asked = iter([False, True])
        assert loader(order, lambda: next(asked)) is STOPPED
        (tmp_path / "go").touch()
        assert len(loader(order, lambda: False)[1]) == 60


def test_a_process_that_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rest is read here, and somebody hears of it."""
    model, plain = Model(torch.float64), Model(torch.float64)
    for one, workers in ((plain, 0), (model, 2)):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        with cr.join() as cluster:
            for step in cluster.train(one, Augmented(tmp_path), losses, BATCH, 12, num_workers=workers, prefetch=1):
                optimizer.step()
                if workers and step.round == 3:
                    os.kill(min(children()), signal.SIGKILL)
    assert digest(*model.parameters()) == digest(*plain.parameters())
    (record,) = caplog.records
    assert "this rank reads samples itself from now on" in record.message
    assert not children()


class Peculiar(Exception):
    """An error that can be packed, and not unpacked."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} is not {other}")


class Failing(Augmented):
    error: Exception = ValueError("no such file")

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == cr.batch_indices(200, BATCH, 4)[7]:
            self.open_a_file()
        return super().__getitem__(index)

    def open_a_file(self) -> None:
        raise self.error


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("error", [ValueError("no such file"), Peculiar(1, 2)])
def test_an_error_shows_where_it_came_from(tmp_path: Path, workers: int, error: Exception) -> None:
    dataset = Failing(tmp_path)
    dataset.error = error
    steps = cr.join().train(Model(torch.float64), dataset, losses, BATCH, 9, num_workers=workers)
    assert [next(steps).round for _ in range(3)] == [1, 2, 3]
    sample, kind = cr.batch_indices(200, BATCH, 4)[7], type(error).__name__
    said = f"sample {sample} of Failing could not be read, at {Path(__file__).name}, line [0-9]+: {kind}: {error}"
    with pytest.raises(UsageError, match=said) as caught:
        next(steps)
    assert not workers or "in open_a_file" in "".join(caught.value.__notes__)
    assert not children()


def test_ranks_name_the_error_and_where_it_was_raised(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    def script() -> None:
        with cr.join(Striped(2)) as cluster:
            for _ in cluster.train(Model(torch.float64), Failing(tmp_path), losses, BATCH, 9, num_workers=1):
                pass

    outcome = run_forked(script, 2)
    assert 0 not in outcome.codes.values()
    firsts = [error.splitlines()[0] for error in outcome.errors.values()]
    where = f"could not be read, at {Path(__file__).name}, line "
    assert all(one.startswith("UsageError: sample") and where in one for one in firsts), firsts
    assert all("ValueError: no such file" in one for one in firsts)
    assert "Traceback" not in capfd.readouterr().err, "all of it is there with CODEDREDUCE_DEBUG=1"


def test_what_cannot_be_sent_is_an_error(tmp_path: Path) -> None:
    def with_a_function(samples: list) -> object:
        return [*default_collate(samples), lambda: 0]

    def of_two(model: torch.nn.Module, batch: list) -> torch.Tensor:
        return losses(model, batch[:2])

    steps = cr.join().train(
        Model(torch.float64), Augmented(tmp_path), of_two, BATCH, 2, collate_fn=with_a_function, num_workers=1
    )
    with pytest.raises((AttributeError, RuntimeError), match="pickle"):
        next(steps)
    assert not children()


def test_a_break_and_a_script_that_goes_on(tmp_path: Path) -> None:
    with cr.join() as cluster:
        for _ in range(2):
            for _ in cluster.train(Model(torch.float64), Augmented(tmp_path), losses, BATCH, 100, num_workers=2):
                assert len(children()) == 2
                break
            assert not children()


class Endless(Augmented):
    """Reading a sample takes minutes in other processes; they say that they have begun."""

    def __init__(self, folder: Path, says: int) -> None:
        super().__init__(folder)
        self._this, self._says = os.getpid(), says

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if os.getpid() != self._this:
            os.write(self._says, f"{os.getpid()}\n".encode())
            time.sleep(600)
        return super().__getitem__(index)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_process_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    """Also not of processes that are in the middle of a long read."""
    hears, says = os.pipe()
    process = os.fork()
    if not process:
        with contextlib.suppress(KeyboardInterrupt):
            for _ in cr.join().train(
                Model(torch.float64), Endless(tmp_path, says), losses, BATCH, 5, micro_batch=6, num_workers=2
            ):
                pass
        os._exit(7)
    os.close(says)
    with os.fdopen(hears) as words:
        loading = {int(words.readline()) for _ in range(2)}
    assert len(loading) == 2
    os.kill(process, number)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert code == (7 if number == signal.SIGINT else -number)
    assert all_gone(loading)


def test_a_resumed_training_loads_what_follows(tmp_path: Path) -> None:
    found = []
    for folder, workers, ends in (("whole", 0, [6]), ("parts", 2, [3, 6])):
        for end in ends:
            model = Model(torch.float64)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            steps = cr.join(MasterWorker(2)).train(
                model, Augmented(tmp_path), losses, BATCH, end, state=[optimizer], num_workers=workers,
                checkpoint=tmp_path / folder, every=1, resume=True,
            )  # fmt: skip
            for _ in steps:
                optimizer.step()
        found.append(digest(*model.parameters()))
    assert found[0] == found[1]


def test_arguments() -> None:
    for options, words in (({"num_workers": -1}, "num_workers"), ({"prefetch": 0}, "prefetch")):
        with pytest.raises(UsageError, match=words):
            cr.join().train(Model(), data(), losses, BATCH, 1, **options)


OTHER_DEFAULT = """
import multiprocessing.context as contexts
contexts._default_context._default_context = contexts._concrete_contexts["forkserver"]  # as from Python 3.14 on
import torch
import codedreduce.torch as cr

def main():
    class Local(torch.utils.data.Dataset):
        def __len__(self):
            return 40
        def __getitem__(self, place):
            return torch.full((3,), float(place))

    model = torch.nn.Linear(3, 1)
    with cr.join() as cluster:
        for step in cluster.train(model, Local(), lambda model, x: model(x).squeeze(1), 8, 3, num_workers=1):
            torch.optim.SGD(model.parameters(), lr=1e-4).step()
    print("trained")

if __name__ == "__main__":
    main()
"""


def test_processes_are_started_alike_whatever_the_default_of_this_python(tmp_path: Path) -> None:
    """A dataset of a notebook cannot be pickled."""
    path = tmp_path / "script.py"
    path.write_text(OTHER_DEFAULT)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.splitlines() == ["trained"], done.stderr
