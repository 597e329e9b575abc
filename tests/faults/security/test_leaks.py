"""Cells that fail in every layer, and everything that is written because of it: no key in any form, anywhere.

Rows I9, S7, S8. Looked at: every message of the kernel, the saved notebook, its HTML, the history, the logs, argv, environments.
"""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from hvdtest.place import Place, text_of
from hvdtest.surface import proc_file
from nbconvert import HTMLExporter

from hvd_kernel.magics.commands.table import SUBCOMMANDS

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

FAILING = {  # layer -> a cell that fails there
    "parsing the magic": "%%hvdrun -np4\n1",
    "an unknown word": "%hvd nonsense",
    "an unknown option": "%%hvdrun --no-such-option\n1",
    "a rank that is not there": "%%hvdrun --ranks 7\n1",
    "syntax on the ranks": "%%hvdrun\nfor",
    "a name that is not there": "%%hvdrun\nnothing_of_the_kind",
    "an exception with locals": "%%hvdrun\ndef f(engine):\n    raise ValueError(rank)\nf(get_ipython().kernel)",
    "an exception in our own code": "%%hvdrun\nhvd.allreduce('text')",
    "one rank in a collective": "%%hvdrun\nif rank: raise KeyError('k')\nhvd.barrier()",
    "ranks that disagree": "%%hvdrun\nhvd.allreduce(torch.ones(2 + rank), name='differs')",
    "an exception that shows our session": "%%hvdrun\nraise RuntimeError(repr(get_ipython().kernel.session))",
    "the engine's own words": "%%hvdrun\nfrom hvd_kernel.worker.shell.engine import RankEngine\nprint(RankEngine.instance())\n1/0",
    "a push of what cannot travel": "import threading\nlock = threading.Lock()\n%hvdpush lock",
    "a pull of what is not there": "%hvdpull not_there",
    "a deadline": "%%hvdrun --timeout 0.5\nimport time; time.sleep(60)",
    "the notebook's own session": "repr(__import__('hvd_kernel.magics').magics.manager_of(get_ipython()).session)\n1/0",
    "the wire": "w = __import__('hvd_kernel.magics').magics.manager_of(get_ipython()).session._wire\nprint(w)\nw.request([99], 'x', {}, None)\n1/0",
}
SUBCOMMANDS = [word for word in ("status", "doctor", "stacks") if word in SUBCOMMANDS]


@pytest.fixture(scope="module")
def book(place: Place) -> nbformat.NotebookNode:
    """A notebook of all those cells, run and saved. Each is followed by one that must work."""
    cells = []
    for code in (*FAILING.values(), *(f"%hvd {word}" for word in SUBCOMMANDS), "%%hvdrun\nrank"):
        outcome = place.run(code, allow_error=True, timeout=90)
        text = json.dumps(outcome.messages, default=str).encode() + json.dumps(outcome.reply, default=str).encode()
        assert place.seen_in(text) == [], code
        outputs = [nbformat.v4.output_from_msg(m) for m in outcome.messages if m["msg_type"] in KEPT]
        cells.append(nbformat.v4.new_code_cell(code, outputs=outputs))
        cells[-1].metadata["status"] = outcome.reply["status"]
    return nbformat.v4.new_notebook(cells=cells)


KEPT = ("stream", "display_data", "execute_result", "error")


def test_s8_every_layer_failed_and_the_next_cell_worked(book: nbformat.NotebookNode) -> None:
    failed = [name for name, cell in zip(FAILING, book.cells, strict=False) if cell.metadata["status"] == "error"]
    assert failed == list(FAILING)
    assert book.cells[-1].metadata["status"] == "ok"
    assert book.cells[-1].outputs[0]["data"]["text/plain"] == "[0] 0\n[1] 1"


def test_s8_i9_saved_notebook_and_html_hold_no_key(place: Place, book: nbformat.NotebookNode, tmp_path: Path) -> None:
    nbformat.write(book, tmp_path / "saved.ipynb")
    html, _ = HTMLExporter().from_notebook_node(book)
    assert len(html) > 100_000
    assert place.seen_in((tmp_path / "saved.ipynb").read_bytes()) == []
    assert place.seen_in(html.encode()) == []


def test_i9_history_and_logs_hold_no_key(place: Place, book: nbformat.NotebookNode) -> None:
    written = [
        path for path in place.home.rglob("*") if path.is_file() and path.name not in {"client", "rank0", "rank1"}
    ]
    pid = next(pid for pid, room in place.family().items() if room == "supervisor")
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    folders = next(json.loads(word) for word in words if word.startswith("{"))["folders"]
    written += [path for folder in folders for path in Path(folder).rglob("*") if path.is_file()]
    assert any(path.name == "history.sqlite" for path in written)
    assert any(path.suffix == ".log" for path in written)
    assert {str(path): seen for path in written if (seen := place.seen_in(text_of(path)))} == {}


def test_s7_argv_and_environments_hold_no_key(place: Place) -> None:
    for pid, room in place.family().items():
        for name in ("cmdline", "environ"):
            assert place.seen_in(proc_file(pid, name)) == [], (room, name)


def test_s7_rank_leaves_no_key_in_its_environment(place: Place) -> None:
    """/proc shows the environment of the start; this is the one that children inherit."""
    cell = "%%hvdrun\nimport os, subprocess\nsubprocess.check_output(['env', '-0'])"
    assert place.seen_in(json.dumps(place.run(cell).stored).encode()) == []


def test_s7_leaked_keys_are_detected(place: Place) -> None:
    """Check that these tests can fail: every form of every key is found in a text that contains it."""
    for name, secret in place.secrets.items():
        assert name in place.seen_in(b"before " + secret + b" after")
    shown = place.run("print(__import__('hvd_kernel.magics').magics.manager_of(get_ipython()).session._wire._config)")
    assert {"session key", "controller's key"} <= set(place.seen_in(shown.text().encode()))
