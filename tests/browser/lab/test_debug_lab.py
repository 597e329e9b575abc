"""A rank at a breakpoint, as a person sees it: an input box under the cell with the rank's number, the answer, the end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.lab import ROOT, Lab, Notebook
from hvdtest.notebook_files import written

pytestmark = [pytest.mark.browser, pytest.mark.jupyter, pytest.mark.timeout(400)]
SHOT = ROOT / "build" / "lab" / "debug.png"
CELL = """%%hvdrun -np 2
secret = 40 + rank
if rank == 1:
    breakpoint()
hvd.barrier()
secret"""
NEW_BOX = ".jp-Stdin-input:not([data-answered])"


def wait_for_text(notebook: Notebook, text: str) -> None:
    notebook.wait(f"document.querySelector('.jp-OutputArea').textContent.includes('{text}')")


def answer(notebook: Notebook, line: str) -> None:
    """Fill the box; one that was answered stays for a moment, so it is marked."""
    box = notebook.page.wait_for_selector(NEW_BOX, timeout=60_000)
    assert box is not None
    box.evaluate("box => box.dataset.answered = 'yes'")
    box.fill(line)
    box.press("Enter")


def test_a_breakpoint_opens_an_input_box_under_the_cell(lab: Lab, place: Path) -> None:
    with lab.browser(height=900) as page:
        notebook = page.open(written(place / "debug.ipynb", CELL))
        notebook.run_all()
        notebook.page.wait_for_selector(NEW_BOX, timeout=120_000)
        assert notebook.text(".jp-Stdin-prompt").startswith("[1] (Pdb)")
        wait_for_text(notebook, "[1] > Cell In[1](3)<module>()")
        wait_for_text(notebook, "[1] -> breakpoint()")
        answer(notebook, "p secret")
        wait_for_text(notebook, "[1] 41")
        notebook.page.wait_for_selector(NEW_BOX, timeout=60_000)
        notebook.shoot(SHOT)
        answer(notebook, "!secret = 7")
        answer(notebook, "c")
        wait_for_text(notebook, "[1] 7")
        wait_for_text(notebook, "[0] 40")
        assert page.errors == []
        notebook.shoot(SHOT.with_name("debug_end.png"))
