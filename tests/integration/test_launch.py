"""`cr.launch`: a function in several processes, from a notebook and from a script."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from codedreduce.errors import UsageError
from tests.waiting import PATIENCE, wait_until

from .test_launcher import nobody_runs

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"

SCRIPT = """
import os, sys, time
import codedreduce.torch as cr

def errs(value):
    with cr.join() as cluster:
        if cluster.rank == 1:
            raise RuntimeError(f"my own bug with {value}")
        time.sleep(60)

def waits(folder):
    open(f"{folder}/up-{os.environ['LOCAL_RANK']}", "w").close()
    time.sleep(600)

if __name__ == "__main__":
    try:
        cr.launch(errs, 3, workers=2)
    except cr.CodedReduceError as error:
        print("raised", type(error).__name__, error, flush=True)
    try:
        cr.launch(waits, sys.argv[1], workers=2)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_the_notebook_runs_and_shows_what_it_says(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    kept = [cell.get("outputs") for cell in notebook.cells]
    NotebookClient(
        notebook, timeout=200, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for outputs in (kept, [cell.get("outputs") for cell in notebook.cells]):  # as it was executed before, and now
        text = str([output for shown in outputs if shown for output in shown])
        for words in ("late ranks", "saved so far", "right at first", "nothing was trained", "True"):
            assert words in text
        assert "Traceback" not in text
    table = next(output for cell in cells for output in cell.outputs if output.output_type == "display_data")
    assert "120" in table.data["text/plain"].splitlines()[-2], "the last round is in the table"
    rows = table.data["text/html"].split("<tr>")
    assert rows[0].startswith("<table")
    assert "late ranks" in rows[1]
    assert len(rows) == 2 + 8, "the latest"
    assert ">120</td>" in rows[-1]
    assert cells[-2].outputs[-1].data["text/plain"] == "True", "the same bits, whoever was late"


def test_errors_and_interrupts_end_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("cr.CodedReduceError", "Exception"))
    process = subprocess.Popen(
        [sys.executable, str(path), str(tmp_path)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert wait_until(lambda: all((tmp_path / f"up-{rank}").exists() for rank in range(2)))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + err
    assert "[1] RuntimeError: my own bug with 3" in out, "with where it was, above that"
    assert "raised CodedReduceError rank 1: RuntimeError: my own bug with 3 (script.py, line 8)" in out
    assert out.endswith("interrupted\n")
    assert nobody_runs("codedreduce.torch.launched_process")


def test_a_notebook_shows_a_mistake_as_one_line() -> None:
    assert UsageError("do this")._render_traceback_() == ["UsageError: do this"]
