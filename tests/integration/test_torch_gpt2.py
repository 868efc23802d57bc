"""GPT-2 over padded sentences: the loss and gradient of Hugging Face's own, in every step and on every rank."""

from pathlib import Path

import torch
from bench.padded import BATCH, losses, model, optimizer_of, padded, sentences

import codedreduce.torch as cr

from .test_torch_striped import bits_of, digest
from .torch_model import run_forked

RANKS, STEPS = 3, 5


def test_every_step_is_hugging_faces(tmp_path: Path) -> None:
    def script() -> None:
        mine, theirs, data = model(0).train(), model(0).train(), sentences(100, seed=1)
        optimizer, other = optimizer_of(mine), optimizer_of(theirs)
        with cr.join() as cluster:
            for step in cluster.train(mine, data, losses, BATCH, STEPS, collate_fn=padded, state=[optimizer]):
                other.zero_grad()
                chosen = cr.batch_indices(len(data), BATCH, step.round)
                assert len({len(data[index]) for index in chosen}) > 3, "nothing is padded: the test shows nothing"
                loss = theirs(**padded([data[index] for index in chosen])).loss
                loss.backward()
                assert abs(step.loss - loss.item()) <= 1e-6 * loss.item()
                whole = torch.cat([one.grad.flatten() for one in theirs.parameters()])
                found = torch.cat([one.grad.flatten() for one in mine.parameters()])
                assert (found - whole).norm() <= 2e-6 * whole.norm()
                optimizer.step()
                other.step()
            for one, their in zip(mine.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(one, their, rtol=1e-4, atol=1e-5)
            (tmp_path / f"{cluster.rank}").write_text(f"{step.round} {digest(*mine.parameters())}")

    outcome = run_forked(script, RANKS, {"CODEDREDUCE_INJECT": "stalls:0.2:0.1s"})
    assert outcome.codes == dict.fromkeys(range(RANKS), 0), outcome.errors
    assert bits_of(tmp_path, RANKS).startswith(f"{STEPS} ")
