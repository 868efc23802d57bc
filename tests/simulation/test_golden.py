"""What random runs do, message by message, and the gradients they give, are those that were frozen."""

import pytest

from codedreduce.simulator import Gradients

from .golden import KINDS, RUNS, course, frozen, is_same, summaries


@pytest.mark.parametrize("kind", KINDS)
def test_runs_take_the_course_that_was_frozen(kind):
    golden = frozen(kind)
    assert len(golden) == RUNS
    assert [pair for pair in zip(golden, summaries(kind), strict=True) if not is_same(*pair)] == []


def test_one_gradient_with_another_sign_shows():
    scenario = KINDS["ranks"](3)
    gradients = Gradients(scenario.samples, scenario.parameters, scenario.seed)
    gradients._rows[0, 0] *= -1
    before, after = course(scenario).summary().split(), course(scenario, gradients=gradients).summary().split()
    assert [one.split("=")[0] for one, other in zip(before, after, strict=True) if one != other] == ["sums", "trace"]
