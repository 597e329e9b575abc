"""A cell that stops in JupyterLab: a rank at a breakpoint, and ranks that wait until the user interrupts them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.lab import ROOT, Lab, Notebook, panel, write_notebook

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
    """Fill the box; an answered box remains for a moment, so it is marked."""
    box = notebook.page.wait_for_selector(NEW_BOX, timeout=60_000)
    assert box is not None
    box.evaluate("box => box.dataset.answered = 'yes'")
    box.fill(line)
    box.press("Enter")


def test_a_breakpoint_opens_an_input_box_under_the_cell(lab: Lab, place: Path) -> None:
    with lab.browser(height=900) as page:
        notebook = page.open(write_notebook(place / "debug.ipynb", CELL))
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


INTERRUPT_SHOT = SHOT.with_name("interrupt.png")
HANG = """%%hvdrun
def load():
    time.sleep(600)
hvd.allreduce(torch.ones(4), name="<b>grad</b>/conv1") if rank != 3 else load()"""
INTERRUPTED = ["%%hvdrun -np 4\nimport time, torch\nkept = rank + 1", HANG]
AFTERWARDS = '%%hvdrun\nint(hvd.allreduce(torch.tensor([kept]), name="again", op=hvd.Sum))'
WAIT = f"{panel(cell=2)}?.querySelector('.hvd-wait')"
EXPLANATION = (
    r"/^allreduce '<b>grad<\/b>\/conv1' waits for rank 3, which is in cell \d+:2 load\(\): time\.sleep\(600\)$/"
)


def test_b1_c5_button_interrupts_an_explained_collective(lab: Lab, place: Path) -> None:
    with lab.browser() as page:
        notebook = page.open(write_notebook(place / "hang.ipynb", *INTERRUPTED, AFTERWARDS))
        notebook.page.click(".jp-Cell >> nth=0")
        notebook.page.keyboard.press("Shift+Enter")
        notebook.wait("document.querySelectorAll('.jp-InputPrompt')[0].textContent.includes('[1]')", 120)
        notebook.page.keyboard.press("Shift+Enter")
        notebook.wait(f"{EXPLANATION}.test({WAIT}?.textContent.trim())")
        notebook.shoot(INTERRUPT_SHOT)
        notebook.page.click("[data-command='notebook:interrupt-kernel'], [title^='Interrupt the kernel']")
        notebook.wait("document.body.textContent.includes('ranks 0-3 interrupted, variables are kept')")
        notebook.wait(f"{WAIT}.hidden")
        notebook.shoot(INTERRUPT_SHOT.with_stem("interrupt-after"))
        notebook.page.click(".jp-Cell >> nth=2")
        notebook.page.keyboard.press("Shift+Enter")
        notebook.wait("document.body.textContent.includes('[0-3] 10')")
        assert page.errors == []
