"""A tab is closed while ranks work, and another one opens the notebook: the panel has everything, while they still work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hvdtest.cluster import until
from hvdtest.lab import Lab, Notebook, panel, write_notebook

pytestmark = [pytest.mark.nightly, pytest.mark.browser, pytest.mark.jupyter, pytest.mark.timeout(400)]
STORY = """%%hvdrun
turn = 0
def train(until):
    global turn
    while not os.path.exists(until):
        turn += 1
        hvd.log(turn=turn)
        time.sleep(0.05)
print("seen")
train("{name}-closed")
print("unseen")
open(f"{name}-said-{{rank}}", "w").close()
train("{name}-go")
print("end")"""
CELLS = [
    "%%hvdrun -np 2\nimport os, time, torch",
    STORY.format(name="a"),
    "%hvdlogs --cell 2",
    STORY.format(name="b"),
    "%%hvdrun\nint(hvd.allreduce(torch.tensor(rank + 1), op=hvd.Sum))",
]
BUSY = ".jp-Notebook-ExecutionIndicator[data-status='busy']"
SHOWN = """(() => {{
    const panel = {panel};
    if (!panel) return null;
    const at = [...panel.querySelectorAll('thead th')].findIndex(head => head.textContent.trim() === 'turn');
    return {{status: panel.querySelector('.hvd-status').textContent,
            lines: [...panel.querySelectorAll('.hvd-line')].map(line => line.textContent).sort(),
            turns: [...panel.querySelectorAll('tbody tr')].map(row => Number(row.cells[at]?.textContent))}}; }})()"""
LOGGED = "[0-1] seen\n[0-1] unseen\n[0-1] end"
OUTPUTS = "[...document.querySelectorAll('.jp-Cell')].map(c => c.querySelector('.jp-OutputArea')?.innerText ?? '')"


def shown(cell: int) -> str:
    return SHOWN.format(panel=panel(cell))


def lines(*texts: str) -> list[str]:
    return sorted(f"[{rank}]{text}" for rank in (0, 1) for text in texts)


def await_panel(notebook: Notebook, cell: int, status: str, *texts: str, above: int = 0) -> dict[str, Any]:
    """Wait until the panel of a cell shows this status, exactly these lines, and both ranks above a turn."""
    said = json.dumps(lines(*texts))
    what = f"p.status === '{status}' && JSON.stringify(p.lines) === JSON.stringify({said})"
    found: Any = notebook.wait(
        f"(p => p && {what} && p.turns.length === 2 && p.turns.every(t => t > {above}) && p)({shown(cell)})"
    )
    return dict(found)


def save(notebook: Notebook) -> None:
    notebook.save()
    notebook.page.wait_for_selector(".jp-mod-dirty", state="detached")


def both_said(folder: Path, name: str) -> None:
    until(lambda: all((folder / f"{name}-said-{rank}").exists() for rank in (0, 1)), "both ranks have said it")


def test_page_opened_during_or_after_a_cell_shows_all_of_it(lab: Lab, place: Path) -> None:
    name = write_notebook(place / "tab.ipynb", *CELLS)
    with lab.browser() as page:
        notebook = page.open(name)
        notebook.run(0)
        notebook.wait("document.querySelectorAll('.jp-InputPrompt')[0].textContent.includes('[1]')")
        notebook.run(1)
        turns = await_panel(notebook, 2, "running", "seen")["turns"]
        save(notebook)
    (place / "a-closed").touch()
    both_said(place, "a")

    with lab.browser() as page:
        notebook = page.open(name, busy=True)
        turns = await_panel(notebook, 2, "running", "seen", "unseen", above=max(turns))["turns"]
        await_panel(notebook, 2, "running", "seen", "unseen", above=max(turns))
        notebook.page.wait_for_selector(BUSY, state="attached")  # the kernel is shown as what it is
        notebook.shoot(place / "shots" / "running.png")
        (place / "a-go").touch()
        await_panel(notebook, 2, "finished", "seen", "unseen", "end")
        notebook.await_kernel()
        notebook.run(2)
        notebook.wait(f"{OUTPUTS}[2].trim() === {json.dumps(LOGGED)}")
        notebook.run(3)
        await_panel(notebook, 4, "running", "seen")
        save(notebook)
        notebook.shoot(place / "shots" / "second.png")
        assert page.errors == []
    for word in ("b-closed", "b-go"):
        (place / word).touch()
    both_said(place, "b")
    lab.await_end()

    with lab.browser() as page:
        notebook = page.open(name)
        for cell in (2, 4):
            await_panel(notebook, cell, "finished", "seen", "unseen", "end")
        notebook.run(4)
        notebook.wait(f"{OUTPUTS}[4].includes('[0-1] 3')")
        notebook.shoot(place / "shots" / "ended.png")
        assert page.errors == []
