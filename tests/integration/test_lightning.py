"""Lightning: the strategy gives what plain Lightning does, on every rank, whoever straggles or falls behind."""

import csv
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning")

import lightning.pytorch as pl
import torch.nn.functional as F  # noqa: N812
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric

from codedreduce.errors import UsageError
from codedreduce.lightning import CodedReduceStrategy

from .lightning_model import BATCH, EACH, SAMPLES, Mean, Net, data, plain_loader, trainer, validation
from .test_torch_striped import digest
from .torch_model import run_forked

RANKS = 3


def fit(folder: Path, *callbacks: pl.Callback, epochs: int = 3, module: Net | None = None, **options) -> pl.Trainer:
    """Train with our strategy, and leave what came of it, one file a rank."""
    module = module or Net()
    ours = trainer(folder, CodedReduceStrategy(batch_size=BATCH, seed=5), *callbacks, epochs=epochs)
    ours.fit(module, DataLoader(data(), batch_size=12, shuffle=True), validation(), **options)
    kept = ours.checkpoint_callback
    assert ours.global_rank == int(os.environ.get("RANK", 0))
    (folder / f"{ours.global_rank}.json").write_text(
        json.dumps(
            {
                "bits": digest(*module.parameters()), "step": ours.global_step, "epoch": ours.current_epoch,
                "best": Path(kept.best_model_path).name, "score": float(kept.best_model_score),
                "kept": sorted(Path(one).name for one in kept.best_k_models),
                "metrics": {name: float(value) for name, value in sorted(ours.callback_metrics.items())},
            }
        )
    )  # fmt: skip
    torch.save(module.state_dict(), folder / f"{ours.global_rank}.pt")
    return ours


def outcome_of(folder: Path, ranks: int = RANKS) -> dict:
    """What all ranks ended with, which must be the same."""
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    assert all(one == found[0] for one in found), found
    return found[0]


def run(script: Callable[[], object], ranks: int = RANKS, **variables: str) -> None:
    found = run_forked(script, ranks, {f"CODEDREDUCE_{key.upper()}": variables[key] for key in variables})
    assert found.codes == dict.fromkeys(range(ranks), 0), found.errors


def logged(folder: Path) -> list[dict[str, str]]:
    (file,) = folder.glob("lightning_logs/*/metrics.csv")
    return list(csv.DictReader(file.open()))


def assert_logged_alike(one: Path, other: Path) -> None:
    others = logged(other)
    rows = logged(one)[: len(others)]  # what follows is of a test
    assert len(rows) == len(others) > 3 * EACH
    for row, its in zip(rows, others, strict=True):
        assert row.keys() == its.keys()
        for name, value in row.items():
            assert (value == "") == (its[name] == ""), name
            assert not value or float(value) == pytest.approx(float(its[name]), rel=2e-5), name


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain Lightning over the same samples."""
    folder = tmp_path_factory.mktemp("plain")
    module = Mean()
    own = trainer(folder, epochs=3)
    own.fit(module, plain_loader(3), validation())
    torch.save(module.state_dict(), folder / "0.pt")
    (folder / "best").write_text(Path(own.checkpoint_callback.best_model_path).name)
    return folder


def assert_close(one: Path, other: Path, tolerance: float = 1e-6) -> None:
    mine, theirs = torch.load(one), torch.load(other)
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name], rtol=tolerance, atol=tolerance)


def test_every_rank_ends_as_plain_lightning_whoever_straggles(tmp_path: Path, plain: Path) -> None:
    """Parameters, all that is logged, the best checkpoint; with stalls the same bits as without."""
    calm, stalled = tmp_path / "calm", tmp_path / "stalled"
    for folder, inject in ((calm, "calm"), (stalled, "stalls:0.2:0.2s")):
        folder.mkdir()

        def script(folder: Path = folder) -> None:
            ours = fit(folder)
            (tested,) = ours.test(dataloaders=validation(), ckpt_path="best", verbose=False)
            assert tested["val_loss"] == pytest.approx(float(ours.checkpoint_callback.best_model_score))

        run(script, inject=inject)
    found = outcome_of(stalled)
    assert found == outcome_of(calm)
    assert (found["step"], found["epoch"]) == (3 * EACH, 3)
    assert_close(stalled / "1.pt", plain / "0.pt")
    assert_logged_alike(stalled, plain)
    assert found["best"] == (plain / "best").read_text()
    written = {file.name for file in stalled.glob("lightning_logs/version_0/checkpoints/*")}
    assert written == {*found["kept"], "last.ckpt"}
    assert not (stalled / "lightning_logs" / "version_1").exists(), "one rank logs"


class Waits(pl.Callback):
    """Holds one rank up after a step, until rank 0 is so far that it cannot be caught up with."""

    def __init__(self, folder: Path, after: int, until: int) -> None:
        self._sign, self._after, self._until = folder / "far", after, until
        self.seen: list[int] = []

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *args: object) -> None:
        self.seen.append(trainer.global_step)
        if trainer.global_rank == 0 and trainer.global_step == self._until:
            self._sign.touch()
        while trainer.global_rank == 2 and trainer.global_step == self._after and not self._sign.exists():
            time.sleep(0.01)


def test_one_that_fell_behind_goes_on_where_the_others_are(tmp_path: Path) -> None:
    """Counters, callbacks and what was logged in the epoch come with the state of another, over an epoch's end."""
    calm, behind = tmp_path / "calm", tmp_path / "behind"
    for folder in (calm, behind):
        folder.mkdir()
    fit(calm, epochs=20)

    def script() -> None:
        waits = Waits(behind, after=8, until=105)
        fit(behind, waits, epochs=20)
        if os.environ["RANK"] == "2":
            assert set(range(12, 105)).isdisjoint(waits.seen), str(waits.seen)
            assert waits.seen[-1] == 20 * EACH

    run(script)
    found = outcome_of(behind)
    alone = outcome_of(calm, 1)
    assert (found["step"], found["epoch"]) == (20 * EACH, 20)
    assert found["kept"] == alone["kept"]
    assert found["metrics"] == pytest.approx(alone["metrics"], rel=1e-4)


def test_a_rank_that_is_killed_is_not_missed(tmp_path: Path) -> None:
    """Also the one that logs and saves: another saves."""

    class Dies(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *args: object) -> None:
            if trainer.global_rank == 0 and trainer.global_step == 4:
                os.kill(os.getpid(), signal.SIGKILL)

    found = run_forked(lambda: fit(tmp_path, Dies()), RANKS, {})
    assert found.codes == {0: -signal.SIGKILL, 1: 0, 2: 0}, found.errors
    ends = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (1, 2)]
    assert ends[0] == ends[1]
    assert ends[0]["step"] == 3 * EACH
    assert list(tmp_path.glob(f"lightning_logs/*/checkpoints/{ends[0]['best']}"))


def test_an_error_where_it_is_led_costs_no_more_than_a_kill(tmp_path: Path) -> None:
    """The others go on, and have all rounds."""

    class Raises(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *args: object) -> None:
            if trainer.global_rank == 0 and trainer.global_step == 4:
                raise RuntimeError("my own bug")

    found = run_forked(lambda: fit(tmp_path, Raises()), RANKS)
    assert found.codes == {0: 1, 1: 0, 2: 0}, found.errors
    ends = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (1, 2)]
    assert ends[0] == ends[1]
    assert ends[0]["step"] == 3 * EACH


def test_checkpoints_of_one_are_gone_on_from_by_the_other(tmp_path: Path, plain: Path) -> None:
    """In the middle of the run, and for ours in the middle of an epoch, where plain loaders cannot."""
    for name in ("first", "ours", "theirs", "middle"):
        (tmp_path / name).mkdir()
    fit(tmp_path / "first", epochs=2)
    ours = next((tmp_path / "first").glob("**/last.ckpt"))
    module = Mean()
    trainer(tmp_path / "theirs", epochs=3).fit(module, plain_loader(3), validation(), ckpt_path=ours)
    torch.save(module.state_dict(), tmp_path / "theirs" / "0.pt")
    assert_close(tmp_path / "theirs" / "0.pt", plain / "0.pt")

    module = Mean()
    theirs = trainer(tmp_path / "theirs", epochs=2)
    theirs.fit(module, plain_loader(2), validation())
    checkpoint = theirs.checkpoint_callback.last_model_path
    fit(tmp_path / "ours", ckpt_path=checkpoint)
    assert_close(tmp_path / "ours" / "0.pt", plain / "0.pt")

    class Saves(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *args: object) -> None:
            if trainer.global_step == EACH + 2:
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    fit(tmp_path / "middle", Saves())
    expected = outcome_of(tmp_path / "middle", 1)["bits"]
    fit(tmp_path / "middle", ckpt_path=tmp_path / "middle.ckpt")
    assert outcome_of(tmp_path / "middle", 1)["bits"] == expected


def test_a_module_that_gives_the_mean_loss_says_so(tmp_path: Path, plain: Path) -> None:
    fit(tmp_path, module=Mean())
    assert_close(tmp_path / "0.pt", plain / "0.pt")
    assert_logged_alike(tmp_path, plain)


def test_the_batch_is_that_of_the_loader_on_each_rank(tmp_path: Path) -> None:
    """As with DDP; with a limit each epoch has its first batches."""

    class Counts(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, outputs, batch, index) -> None:
            samples.append((index, batch.samples))

    samples: list[tuple[int, int]] = []
    ours = pl.Trainer(
        max_epochs=2, limit_train_batches=2, accelerator="cpu", strategy=CodedReduceStrategy(), logger=False,
        callbacks=[Counts()], enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    ours.fit(Net(), DataLoader(data(), batch_size=30, shuffle=True))
    assert samples == [(0, 30), (1, 30)] * 2


class Weighed(Net):
    """Samples of one kind count three times as much; plain Lightning is given the mean."""

    plain = False

    def training_step(self, batch, batch_idx: int):
        x, y = batch
        weights = torch.where(y == 0, 3.0, 1.0)
        sums = weights * F.cross_entropy(self.body(x), y, reduction="none")
        return sums.sum() / weights.sum() if self.plain else {"loss": sums, "weights": weights}


def test_weights(tmp_path: Path) -> None:
    for name in ("plain", "ours"):
        (tmp_path / name).mkdir()
    module = Weighed()
    module.plain = True
    trainer(tmp_path / "plain", epochs=2).fit(module, plain_loader(2), validation())
    torch.save(module.state_dict(), tmp_path / "plain" / "0.pt")
    fit(tmp_path / "ours", epochs=2, module=Weighed())
    assert_close(tmp_path / "ours" / "0.pt", tmp_path / "plain" / "0.pt")


def test_the_one_that_leads_ends_it_on_all(tmp_path: Path) -> None:
    """As `max_time` does, which only it looks at; and the same trainer trains again."""

    class Stops(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *args: object) -> None:
            if trainer.global_rank == 0 and trainer.global_step == 8:
                trainer.should_stop = True

    def script() -> None:
        ours = fit(tmp_path, Stops())
        assert ours.global_step == 8
        ours.fit_loop.max_epochs = 4
        ours.should_stop = False
        ours.fit(ours.lightning_module, DataLoader(data(), batch_size=12, shuffle=True), validation())
        assert ours.global_step > 8

    run(script)
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]
    assert len({(one["bits"], one["step"], one["best"]) for one in found}) == 1, found


class Scalar(Net):
    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        return super().training_step(batch, batch_idx).mean()


class Manual(Net):
    automatic_optimization = property(lambda self: False, lambda self, value: None)


class Coupled(Net):
    mean_loss = True

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        x, y = batch
        out = self.body(x - x.mean(0))
        return F.cross_entropy(out, y)


class WithMetric(Net):
    def __init__(self) -> None:
        super().__init__()
        self.seen = MeanMetric()

    def training_step(self, batch, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        self.seen.update(loss)
        return loss


class Repeated(Net):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters())


@pytest.mark.parametrize(
    ("module", "options", "words"),
    [
        (Scalar, {}, "one loss for all samples.*mean_loss = True"),
        (Manual, {}, "optimizes manually"),
        (Coupled, {}, "couples samples: the loss, summed over samples"),
        (WithMetric, {}, r"updates seen \(MeanMetric\)"),
        (Repeated, {}, "evaluates a batch several times"),
        (Net, {"accumulate_grad_batches": 2}, "micro_batch="),
        (Net, {"reload_dataloaders_every_n_epochs": 1}, "must be known before the first"),
    ],
)
def test_what_would_be_wrong_is_refused(tmp_path: Path, module: type[Net], options: dict, words: str) -> None:
    ours = pl.Trainer(
        max_epochs=1, accelerator="cpu", strategy=CodedReduceStrategy(), logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, **options,
    )  # fmt: skip
    with pytest.raises(UsageError, match=words):
        ours.fit(module(), DataLoader(data(), batch_size=30))


def test_loaders_that_cannot_be_asked_for_any_round_are_refused(tmp_path: Path) -> None:
    loader = DataLoader(data(), batch_sampler=[[1, 2], [3, 4]])
    with pytest.raises(UsageError, match="the DataLoader has a batch_sampler of its own"):
        trainer(tmp_path, CodedReduceStrategy()).fit(Net(), loader)
    with pytest.raises(UsageError, match=f"600 samples over all ranks, but an epoch only {SAMPLES}"):
        trainer(tmp_path, CodedReduceStrategy(batch_size=600)).fit(Net(), DataLoader(data(), 300, drop_last=True))
