import json
from pathlib import Path

from tests.command import codedreduce

SMALL = ["--tree", "2x1", "--samples", "60", "--parameters", "10", "--rounds", "4", "--compute", "0.02s"]


def test_table_json_and_report(tmp_path: Path) -> None:
    target, report = tmp_path / "results.json", tmp_path / "report"
    run = codedreduce("race", *SMALL, "--delays", "one:0.05s", "--json", str(target), "--report", str(report))
    assert run.returncode == 0, run.stderr
    document = json.loads(target.read_text())
    assert document["conditions"]["tree"] == "2x1"
    assert [result["name"] for result in document["results"]] == [
        "master-worker", "gradient-coding", "live-compensation", "ring", "eager", "progressive",
        "striped",
    ]  # fmt: skip
    for result in document["results"]:
        assert result["scheme"].removeprefix("coded-reduce ") in run.stdout
        assert len(result["losses"]) == len(result["round_seconds"]) == 4
        assert result["final_loss"] == result["losses"][-1]
        assert result["saved"] >= 0
        assert result["busiest_bytes"] is None
        if "live" not in result["scheme"]:
            assert result["work"] > 0.99
            assert result["max_error"] < 1e-5
            assert result["bit_identical"]
    page = (report / "index.html").read_text()
    assert page.count("<svg") == 5
    assert "Loss against time" in page


def test_mistakes_are_named_before_anything_runs() -> None:
    run = codedreduce("race", *SMALL, "--delays", "windy")
    assert run.returncode == 2
    assert "unknown delays 'windy'" in run.stderr
