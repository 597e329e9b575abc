"""make demo: run the quickstart on four ranks, show its progress, keep the notebook and an HTML page, print what was measured.

Exit status 0 only if every cell did what it should and the test accuracy is at least 97 %.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter
from traitlets.config import Config

HERE = Path(__file__).resolve().parent
NOTEBOOK = HERE / "01_quickstart.ipynb"
BUILD = HERE.parent / "build" / "demo"
PICTURES_FIRST = ["image/svg+xml", "image/png", "text/html", "text/plain"]
GOAL = 0.97


def say(line: str) -> None:
    """Write one line of progress."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def title(source: str) -> str:
    """The first line of a cell that says something, without the magic and comments."""
    lines = [line for line in source.splitlines() if line.strip() and not line.startswith(("%%", "#"))]
    return (lines or ["(empty)"])[0][:60]


def text_of(cell: dict[str, Any]) -> str:
    """What a cell printed."""
    return "".join(o.get("text", "") for o in cell["outputs"] if o["output_type"] == "stream" and o["name"] == "stdout")


class Progress:
    """nbclient's hooks, as lines in the terminal."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.started = time.monotonic()

    def complete(self, cell: dict[str, Any], **_: Any) -> None:
        """A cell has finished: say how long after the start, and what it printed."""
        self.done += 1
        say(f"[{self.done:2d}/{self.total}] {time.monotonic() - self.started:6.1f} s  {title(cell['source'])}")
        for line in text_of(cell).splitlines():
            say(f"                   {line}")


def run(notebook: Any) -> float:
    """Execute in place; returns the seconds it took.

    Raises
    ------
    CellExecutionError
        If a cell failed that should not.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    progress = Progress(len(code))
    client = NotebookClient(
        notebook,
        kernel_name="hvd_kernel",
        timeout=600,
        iopub_timeout=600,  # of itself nbclient waits 4 s for the last output, then goes on without it
        resources={"metadata": {"path": str(HERE)}},
        on_cell_executed=lambda cell, cell_index, execute_reply: progress.complete(cell),  # noqa: ARG005
    )
    client.create_kernel_manager()
    client.km.transport_encryption = "required"  # loopback too: the code and what it prints are nobody else's business
    client.execute()
    return time.monotonic() - progress.started


def summary_of(notebook: Any) -> dict[str, Any]:
    """What the last dashboard measured: it stands in the output's metadata."""
    found = [
        output["metadata"]["hvd"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "hvd" in output.get("metadata", {})
    ]
    return found[-1] if found else {}


def table(summary: dict[str, Any], seconds: float) -> str:
    """The demo's figures, one line each."""
    per_rank = ", ".join(f"{v:,.0f}" for v in summary["samples_per_s"]["per_rank"].values())
    rows = {
        "ranks": f"{len(summary['ranks'])}",
        "epochs": f"{summary['logged']['epoch']:.0f}",
        "test accuracy": f"{summary['logged']['test_accuracy']:.1%}",
        "samples/s per rank": per_rank,
        "samples/s in total": f"{summary['samples_per_s']['total']:,.0f}",
        "bus bandwidth": f"{summary['bus_gbps']:.2f} GB/s",
        "time": f"{seconds:.1f} s, start of the ranks included",
    }
    return "\n".join(f"  {name:20s}{value}" for name, value in rows.items())


def main() -> int:
    """Run the demo; returns the exit status."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    BUILD.mkdir(parents=True, exist_ok=True)
    say(f"running {NOTEBOOK.name} on 4 ranks")
    try:
        seconds = run(notebook)
    except CellExecutionError as error:
        say(f"the demo failed: {error.ename}: {error.evalue}")
        return 1
    finally:
        nbformat.write(notebook, BUILD / NOTEBOOK.name)
    exporter = HTMLExporter(config=Config({"NbConvertBase": {"display_data_priority": PICTURES_FIRST}}))
    page = BUILD / NOTEBOOK.with_suffix(".html").name
    page.write_text(exporter.from_notebook_node(notebook)[0], encoding="utf-8")
    summary = summary_of(notebook)
    say(table(summary, seconds))
    say(f"the executed notebook and a page to look at: {BUILD / NOTEBOOK.name}, {page}")
    if summary["logged"]["test_accuracy"] < GOAL:
        say(f"the test accuracy is below {GOAL:.0%}: something is wrong")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
