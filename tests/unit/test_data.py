"""Where samples come from: every kind of source holds the same, reads no more than it must, and says what is wrong."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from codedreduce import CodedReduce, MasterWorker, Tree
from codedreduce.errors import UsageError
from codedreduce.training import SGD, Arrays, LogisticRegression, open_data, synthetic, train
from codedreduce.training.batches import Batches, batch_indices
from codedreduce.training.data import DIGESTED, Source
from codedreduce.training.gradient import BatchGradient

DATA = synthetic(300, 20, seed=1)
KINDS = ("arrays", "npz", "compressed", "float64", "fortran", "csv", "named.csv", "libsvm")


def make(kind: str, folder: Path, data: Arrays = DATA) -> Source:
    """The same numbers, stored in one way or another."""
    x, y = data.x, data.y
    path = folder / (f"d.{kind}" if "csv" in kind or kind == "libsvm" else f"{kind}.npz")
    if kind == "arrays":
        return data
    if kind == "npz":
        np.savez(path, x=x, y=y)
    elif kind == "compressed":
        np.savez_compressed(path, x=x, y=y)
    elif kind == "float64":
        np.savez(path, x=x.astype(np.float64), y=y.astype(np.int64))
    elif kind == "fortran":
        np.savez(path, y=y, x=np.asfortranarray(x))
    elif kind == "libsvm":
        cells = (" ".join(f"{i + 1}:{value}" for i, value in enumerate(row)) for row in x.tolist())
        labels = ("+1" if label else "-1" for label in y)
        path.write_text("".join(f"{label} {row}\n" for label, row in zip(labels, cells, strict=True)))
    else:
        rows = [",".join(map(str, [*row, label])) for row, label in zip(x.tolist(), y.tolist(), strict=True)]
        names = [",".join(f"f{i}" for i in range(x.shape[1])) + ",label", ""] if kind == "named.csv" else []
        path.write_text("\n".join(names + rows) + "\n")
    return open_data(path)


_watched: list[tuple[str, list[str]]] = []


def _heard(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _watched and str(arguments[0]).startswith(_watched[0][0]):
        _watched[0][1].append(str(arguments[0]))


@contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """Every opening of a file below a folder, by this process."""
    if not hasattr(watched, "hooked"):
        sys.addaudithook(_heard)
        watched.hooked = True  # type: ignore[attr-defined]
    seen: list[str] = []
    _watched.append((str(folder), seen))
    try:
        yield seen
    finally:
        _watched.pop()


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_hold_the_same(tmp_path: Path, kind: str) -> None:
    source = make(kind, tmp_path)
    assert source.shape() == (300, 20)
    for ranges in ([range(20, 25), range(3, 6)], [range(300)], [range(5), range(5, 9)], [range(299, 300)]):
        rows = [number for one in ranges for number in one]
        for held in (source, source.loaded()):
            x, y = held.read(ranges)
            assert x.dtype == y.dtype == np.float32
            assert x.tobytes() == DATA.x[rows].tobytes()
            assert y.tobytes() == DATA.y[rows].tobytes()
    assert source.digest() == source.loaded().digest() == DATA.digest()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_asked_for(tmp_path: Path, kind: str) -> None:
    source = make(kind, tmp_path)
    for ranges in ([], [range(7, 7)], [range(7, 7), range(3, 3)]):
        x, y = source.read(ranges)
        assert x.shape == (0, 20)
        assert y.shape == (0,)


def test_no_samples_at_all(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.empty((0, 3), np.float32), y=np.empty(0, np.float32))
    (tmp_path / "a.csv").write_text("f,g,h,label\n")
    for name in ("a.npz", "a.csv"):
        source = open_data(tmp_path / name)
        assert source.shape() == source.loaded().shape() == (0, 3)
        assert source.digest() == "0 x 3, checksum 00000000"


@pytest.mark.parametrize("kind", KINDS)
def test_digests_of_other_data_differ(tmp_path: Path, kind: str) -> None:
    seen = {make(kind, tmp_path).digest()}
    for row, column in ((0, 0), (299, 19)):
        x, y = DATA.x.copy(), DATA.y.copy()
        x[row, column] += 1
        (tmp_path / f"{row}").mkdir()
        seen.add(make(kind, tmp_path / f"{row}", Arrays(x, y)).digest())
    (tmp_path / "y").mkdir()
    seen.add(make(kind, tmp_path / "y", Arrays(DATA.x, 1 - DATA.y)).digest())
    (tmp_path / "fewer").mkdir()
    seen.add(make(kind, tmp_path / "fewer", Arrays(DATA.x[:-1], DATA.y[:-1])).digest())
    assert len(seen) == 5


def test_a_digest_looks_at_a_few_rows_only() -> None:
    asked: list[range] = []

    class Watching(Arrays):
        def read(self, ranges):
            asked.extend(ranges)
            return super().read(ranges)

    Watching(DATA.x, DATA.y).digest()
    assert len(asked) == DIGESTED
    assert (asked[0], asked[-1]) == (range(1), range(299, 300))


@pytest.mark.parametrize("kind", KINDS)
def test_a_shape_is_read_once_and_without_the_data(tmp_path: Path, kind: str, monkeypatch) -> None:
    source = make(kind, tmp_path)
    monkeypatch.setattr(np, "load", lambda *_: pytest.fail("the data was loaded"))
    with watched(tmp_path) as seen:
        for _ in range(5):
            assert source.shape() == (300, 20)
    assert len(seen) == (0 if kind == "arrays" else 1)


@pytest.mark.parametrize("kind", ["npz", "compressed", "csv", "libsvm"])
def test_the_root_opens_its_file_as_often_however_many_rounds(tmp_path: Path, kind: str) -> None:
    opened = []
    for rounds in (1, 5):
        source = make(kind, tmp_path)
        with watched(tmp_path) as seen:
            train(LogisticRegression(), source, scheme=MasterWorker(2), rounds=rounds)
        opened.append(len(seen))
    assert opened[0] == opened[1] <= 3


def held_by_leaf(source: Source, fanout: int, depth: int, stragglers: int) -> tuple[int, list[np.ndarray]]:
    """What a leaf has in its hands after everything that it may be asked for was asked of it; its own unit first."""
    plan = CodedReduce(Tree.regular(fanout=fanout, depth=depth), stragglers).plan(samples=source.shape().samples)
    gradient = BatchGradient(LogisticRegression(), source, plan, batch=None, seed=0)
    gradient.prepare(plan.workers)
    out = np.empty(source.shape().features + 1, np.float32)
    for unit in plan.held(plan.workers):
        for piece in unit.pieces:
            gradient(piece, np.zeros_like(out), 1, out, plan.workers)
    return plan.calm_load(plan.workers), [x for _, x, _ in gradient._kept]


def test_replicas_of_data_in_memory_are_views() -> None:
    source = synthetic(840, 3)
    own, held = held_by_leaf(source, 4, 3, stragglers=3)
    assert sum(map(len, held)) > 0.7 * 840, "with s=3 a leaf of 4x3 may be asked for most of the data"
    assert all(np.shares_memory(rows, source.x) for rows in held)
    assert len(held[0]) == own


def is_mapped(values: np.ndarray | None) -> bool:
    return values is not None and (isinstance(values, np.memmap) or is_mapped(values.base))


def test_replicas_of_an_archive_are_views_of_its_file(tmp_path: Path) -> None:
    source = make("npz", tmp_path, synthetic(840, 3))
    own, (first, *replicas) = held_by_leaf(source, 4, 3, stragglers=3)
    assert is_mapped(source.loaded().x)
    assert sum(map(len, replicas)) > 0.7 * 840
    assert all(map(is_mapped, replicas))
    assert len(first) == own
    assert first.flags.aligned, "what every round needs is where linear algebra can use it"


@pytest.mark.parametrize("kind", ["csv", "libsvm"])
def test_own_rows_are_read_first_and_all_only_once(tmp_path: Path, kind: str) -> None:
    source = make(kind, tmp_path)
    plan = CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=300)
    gradient = BatchGradient(LogisticRegression(), source, plan, batch=None, seed=0)
    gradient.prepare(3)
    out = np.empty(21, np.float32)
    own, other = list(plan.units(3))[:2]
    for unit, openings in ((own, 0), (other, len(other.pieces)), (other, 0), (own, 0)):
        with watched(tmp_path) as seen:
            for piece in unit.pieces:
                gradient(piece, np.zeros(21, np.float32), 1, out, 3)
        assert len(seen) == openings


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [None, 70])
def test_gradients_are_the_same_bits_from_every_source(tmp_path: Path, kind: str, batch: int | None) -> None:
    """Against an independent computation; by its owner and by every replica, prepared or not, loaded or not."""
    objective, model = LogisticRegression(), np.linspace(-1, 1, 20, dtype=np.float32)
    plan = CodedReduce(Tree.regular(fanout=2, depth=2), 1).plan(samples=batch or 300)
    sent, out, truth = np.append(model, np.float32(0)), np.empty(21, np.float32), np.empty(21, np.float32)
    for source in (make(kind, tmp_path), make(kind, tmp_path).loaded()):
        for node in (1, 3, 4):
            gradient = BatchGradient(objective, source, plan, batch=batch, seed=5)
            if node != 4:
                gradient.prepare(node)
            for round_ in (1, 2, 5, 4):
                chosen = np.arange(300) if batch is None else batch_indices(300, batch, round_, seed=5)
                for unit in plan.held(node):
                    for (part,) in unit.pieces:
                        rows = chosen[part.start : part.stop]
                        truth[-1] = objective.evaluate(model, DATA.x[rows], DATA.y[rows], None, truth[:-1])
                        gradient((part,), sent, round_, out, node)
                        assert out.tobytes() == truth.tobytes()


def test_batches_go_through_all_samples_before_they_begin_again() -> None:
    batches = Batches(103, 10, seed=4)
    first = np.concatenate([batches.indices(round_) for round_ in range(1, 11)])
    second = np.concatenate([batches.indices(round_) for round_ in range(11, 21)])
    assert len(set(first)) == len(set(second)) == 100
    assert (first != second).any()
    assert (batches.indices(3) == first[20:30]).all(), "also when an earlier epoch is asked for again"
    assert (batch_indices(103, 10, 12, seed=4) == second[10:20]).all()
    assert (batch_indices(103, 10, 12, seed=5) != second[10:20]).any()


@pytest.mark.parametrize("asked", [(10, 11, 1), (10, 0, 1), (10, 5, 0)])
def test_batches_that_cannot_be(asked: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match=r"a batch has 1 to 10|counted from 1"):
        batch_indices(*asked)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "1,2,3\n4,5\n", "sample 1 has 2 columns; the first has 3"),
        ("a.csv", "1,2,3\n\n4,5,6,7\n", "sample 1 has 4 columns; the first has 3"),
        ("a.csv", "1,2,3\n4,oops,6\n", "sample 1 is not all numbers"),
        ("a.csv", ",1,2\n3,4,5\n", "sample 0 is not all numbers"),
        ("a.csv", "1,2,3\n4,nan,6\n", "x has a value that is not a number in sample 1"),
        ("a.csv", "1,2,3\n4,5,inf\n", "y has a value that is infinite in sample 1"),
        ("a.csv", "f,g,label\nh,i,j\n1,2,3\n", "sample 0 is not all numbers"),
        ("a.csv", "1\n2\n", "1 column"),
        ("a.txt", "1 1:2 3:x\n0 1:1\n", "sample 0 is not LIBSVM text"),
        ("a.txt", "1 1:2\n0 0:1\n", "sample 1 is not LIBSVM text"),
        ("a.txt", "1 1:2\n0 3:1 1:1\n", "sample 1 is not LIBSVM text"),
        ("a.npz", "no archive", "not a readable .npz"),
    ],
)
def test_odd_rows_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        open_data(path).read([range(2)])
    with pytest.raises(UsageError, match=message):
        open_data(path).loaded()


def test_a_bad_value_is_named_by_its_sample(tmp_path: Path) -> None:
    x = DATA.x.copy()
    x[222, 3] = np.nan
    np.savez(tmp_path / "a.npz", x=x, y=DATA.y)
    source = open_data(tmp_path / "a.npz")
    source.read([range(200)])
    with pytest.raises(UsageError, match=r"a\.npz: x has a value that is not a number in sample 222"):
        source.read([range(10), range(220, 230)])
    with pytest.raises(UsageError, match=r"a\.npz: x has a value that is not a number in sample 222"):
        source.loaded()
    with pytest.raises(UsageError, match="the data: x has a value that is not a number in sample 222"):
        Arrays(x, DATA.y)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.ones(3)}, r"a\.npz has a; it needs x"),
        ({"x": np.ones(3), "y": np.ones(3)}, r"got \(3,\) and \(3,\)"),
        ({"x": np.ones((3, 2)), "y": np.ones(4)}, r"got \(3, 2\) and \(4,\)"),
        ({"x": np.full((3, 2), "a"), "y": np.ones(3)}, "x must hold numbers, but holds <U1"),
        ({"x": np.ones((3, 2)), "y": np.array([None] * 3)}, "y must hold numbers, but holds object"),
    ],
)
def test_archives_that_do_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UsageError, match=message):
        open_data(tmp_path / "a.npz").shape()


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    make("compressed", tmp_path)
    path = tmp_path / "compressed.npz"
    content = bytearray(path.read_bytes())
    content[2000:2200] = bytes(200)
    path.write_bytes(content)
    source = open_data(path)
    assert source.shape() == (300, 20), "the header is whole"
    with pytest.raises(UsageError, match=r"compressed\.npz is not a readable \.npz archive"):
        source.loaded()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "arrays"])
def test_a_file_that_disappears(tmp_path: Path, kind: str) -> None:
    early, late = make(kind, tmp_path), make(kind, tmp_path)
    x, _ = late.read([range(100)])
    loaded = late.loaded()
    (path,) = tmp_path.iterdir()
    path.unlink()
    with pytest.raises(UsageError, match=r"cannot read '.*': No such file"):
        early.shape()
    assert x.tobytes() == loaded.x[:100].tobytes() == DATA.x[:100].tobytes(), "what was read is there"
    assert late.shape() == (300, 20)


def test_a_text_that_changes(tmp_path: Path) -> None:
    source = make("csv", tmp_path)
    source.read([range(3)])
    (path,) = tmp_path.iterdir()
    path.write_text("1,2,3\n")
    with pytest.raises(UsageError, match="has changed since it was first read"):
        source.read([range(3)])


def test_data_is_opened_by_name_or_by_path(tmp_path: Path) -> None:
    np.savez(tmp_path / "file.npz", x=DATA.x, y=DATA.y)
    assert open_data(str(tmp_path / "file.npz")) == open_data(tmp_path / "file.npz")
    with pytest.raises(UsageError, match=r"there is no file 'nothing\.csv'"):
        open_data("nothing.csv")
    (tmp_path / "a.csv").write_bytes(b"\0\1\2")
    with pytest.raises(UsageError, match=r"a\.csv is not text"):
        open_data(tmp_path / "a.csv")


@pytest.mark.parametrize("kind", ["npz", "csv", "float64"])
def test_training_from_a_file_ends_with_the_bits_of_arrays(tmp_path: Path, kind: str) -> None:
    scheme = CodedReduce(Tree.regular(fanout=2, depth=2), 1)
    arguments = {"scheme": scheme, "rounds": 4, "optimizer": SGD(0.5), "batch": 90, "seed": 3}
    plain = train(LogisticRegression(), DATA, **arguments)
    file = train(LogisticRegression(), make(kind, tmp_path), inject="stalls:0.2:0.1s", **arguments)
    assert file.parameters.tobytes() == plain.parameters.tobytes()
