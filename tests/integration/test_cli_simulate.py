import json
from pathlib import Path

import pytest

from tests.command import codedreduce
from tests.simulation.check_run import trace_of
from tests.simulation.random_scenarios import random_scenario

SMALL = ["--tree", "4x2", "--samples", "200", "--parameters", "50", "--rounds", "12", "--compute", "2s"]


def test_table_json_and_report(tmp_path: Path) -> None:
    target, report = tmp_path / "results.json", tmp_path / "report"
    run = codedreduce("simulate", *SMALL, "--delays", "bursty", "--json", str(target), "--report", str(report))
    assert run.returncode == 0, run.stderr
    document = json.loads(target.read_text())
    assert document["seed"] == 0
    assert document["conditions"]["delays"] == "bursty"
    assert len(document["results"]) == 7
    keys = {"scheme", "mean", "median", "p95", "p99", "work", "busiest_bytes", "max_error", "bit_identical"}
    for result in document["results"]:
        assert keys <= set(result)
        assert result["scheme"].removeprefix("coded-reduce ") in run.stdout
        assert result["median"] <= result["p95"] <= result["p99"]
        if "live" not in result["scheme"]:
            assert result["max_error"] < 1e-5
            assert result["bit_identical"]
    page = (report / "index.html").read_text()
    assert page.count("<svg") == 4
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("http://matplotlib.org", ""), "nothing is loaded from elsewhere"


def test_same_seed_same_results(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "two"):
        target = tmp_path / name
        codedreduce(
            "simulate", *SMALL, "--schemes", "progressive,ring", "--delays", "exponential", "--json", str(target)
        )
        texts.append(target.read_bytes())
    assert texts[0] == texts[1]


def test_trace_and_replay(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace"
    arguments = [*SMALL, "--schemes", "progressive", "--delays", "stalls:0.2:1s", "--trace", str(trace)]
    assert codedreduce("simulate", *arguments).returncode == 0
    run = codedreduce("replay", str(trace), "--node", "5", "--round", "2")
    assert run.returncode == 0, run.stderr
    assert "the run is the same as the trace" in run.stdout
    lines = [line for line in run.stdout.splitlines() if " node " in line and not line.startswith("    ")]
    assert lines
    assert all(line.split(" ")[2] == "5" for line in lines)


def test_replay_notices_a_difference(tmp_path: Path) -> None:
    trace = tmp_path / "run.trace"
    text = trace_of(random_scenario(5))
    trace.write_text(text.replace("Begin", "Begun", 1))
    run = codedreduce("replay", str(trace))
    assert (run.returncode, "the run differs from the trace" in run.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0mbit"], "above zero"),
        (["--schemes", "magic"], "unknown scheme 'magic'"),
        (["--delays", "nowhere.npz:key"], "there is no trace 'nowhere.npz'"),
        (["--compute", "soon"], "20s, 0.5ms; got 'soon'"),
        (["--samples", "10"], "10 samples cannot be shared by 84 workers"),
        (["--stragglers", "7"], "stragglers=7"),
        (["--rounds", "0"], "`--rounds 0`: must be at least 1"),
        (["--json", "/nowhere/x.json", "--rounds", "1", "--tree", "2x1", "--schemes", "ring"], "cannot write"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], message: str) -> None:
    run = codedreduce("simulate", *arguments)
    assert run.returncode == 2, run.stdout
    assert message in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1


def test_replay_of_something_else(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("hello\n")
    run = codedreduce("replay", str(other))
    assert run.returncode == 2
    assert "not a scenario" in run.stderr
