"""A notebook in JupyterLab whose ranks a cluster's engine holds: the behaviour that Ray and Spark share.

The kernel is that of an environment which has the engine; Lab itself is pytest's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hvdtest.environments import environment
from hvdtest.lab import write_notebook

if TYPE_CHECKING:  # a browser's driver takes seconds to import, and the default tier only collects these tests
    from hvdtest.lab import Browser, Lab, Notebook

SHOTS = Path(__file__).resolve().parents[2] / "build" / "lab"
PATIENT_S = 300.0
HANG = "%%hvdrun\nimport time\nhvd.barrier() if rank else time.sleep(600)"
STILL = '%%hvdrun\nprint("still", hvd.allgather_object(kept))'
BUTTON = "[data-command='notebook:interrupt-kernel'], [title^='Interrupt the kernel']"


@contextmanager
def notebook_of(
    name: str, cells: Sequence[str], folder: Path, patch: pytest.MonkeyPatch, **env: str
) -> Iterator[tuple[Lab, Browser, Notebook]]:
    """A notebook of these cells, open in JupyterLab; its kernel is that of an environment."""
    from hvdtest.lab import Lab, chromium
    from hvdtest.notebooks import kernels_of

    for variable, value in {"JUPYTER_PATH": str(kernels_of(environment(name), folder / "share")), **env}.items():
        patch.setenv(variable, value)
    (place := folder / "notebooks").mkdir()
    with chromium() as browsers, Lab(place, browsers) as lab, lab.browser(height=1250) as page:
        yield lab, page, page.open(write_notebook(place / "engine.ipynb", *cells))


def run(notebook: Notebook, cell: int) -> None:
    """Run the cell at a place, from 0, to its end, which is no error."""
    begin(notebook, cell)
    finish(notebook, cell)


def finish(notebook: Notebook, cell: int) -> None:
    """Wait for the end of a started cell; it must not be an error."""
    notebook.wait(f"/\\[\\d+\\]/.test({_at(cell)}.querySelector('.jp-InputPrompt').textContent)", PATIENT_S)
    red = f"[...{_at(cell)}.querySelectorAll('[data-mime-type=\"application/vnd.jupyter.stderr\"]')]"
    said = notebook.page.evaluate(f"{red}.map(each => each.textContent).join()")
    assert "Traceback" not in said, said


def begin(notebook: Notebook, cell: int) -> None:
    """Start the cell at an index."""
    notebook.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-InputPrompt").click()
    notebook.page.keyboard.press("Control+Enter")


def column(notebook: Notebook, title: str, head: str) -> list[str]:
    """Return the cells of a column of the panel with that title, one for each rank."""
    found: Any = notebook.page.evaluate(_column(title, head))
    return list(found)


def wait_for_column(notebook: Notebook, title: str, head: str, test: str) -> None:
    """Wait until every rank's text under a head passes a test in JavaScript, of ``text`` and ``rank``."""
    all_ = f"(found => found.length > 0 && found.every((text, rank) => {test}))"
    notebook.wait(f"{_shown(title)} !== undefined && {all_}({_column(title, head)})", PATIENT_S)


def interrupt(notebook: Notebook, cell: int, number: int, said: str, shot: str) -> None:
    """Start a cell whose ranks wait for rank 0 (``HANG``); press the interrupt button when the panel shows the wait."""
    from hvdtest.lab import panel

    begin(notebook, cell)
    notebook.wait(f"/waits for rank 0/.test({panel(number)}?.querySelector('.hvd-wait')?.textContent)", PATIENT_S)
    notebook.shoot(SHOTS / f"{shot}-hang.png")
    notebook.page.click(BUTTON)
    notebook.wait(f"document.body.textContent.includes({said!r})", PATIENT_S)


def train_and_interrupt(notebook: Notebook, engine: str, seen: Path, trained: str) -> None:
    """Run cells 0 to 4 of ranks on an engine: its cluster, the start, a training until ``seen`` exists, ``HANG``, ``STILL``.

    ``trained``: what the training prints at its end. Pictures are of the panel while they train and while they wait.
    """
    run(notebook, 0)
    run(notebook, 1)
    begin(notebook, 2)
    wait_for_column(notebook, "cell 3", "step", "Number(text.replaceAll(',', '')) > 100")
    wait_for_column(notebook, "cell 3", "samples/s", "Number(text.replaceAll(',', '')) > 0")
    notebook.shoot(SHOTS / f"{engine}.png")
    seen.touch()
    notebook.wait(f"document.body.textContent.includes({trained!r})")
    interrupt(notebook, 3, 4, "ranks 0-1 interrupted, variables are kept", engine)
    run(notebook, 4)
    notebook.wait("document.body.textContent.includes('[0-1] still [0, 10]')")


def _at(cell: int) -> str:
    return f"document.querySelectorAll('.jp-Notebook .jp-Cell')[{cell}]"


def _shown(title: str) -> str:
    titled = f"each.querySelector('h3').textContent === {title!r}"
    return f"[...document.querySelectorAll('.hvd')].find(each => {titled})"


def _column(title: str, head: str) -> str:
    at = f"[...board.querySelectorAll('thead th')].findIndex(each => each.textContent.trim() === {head!r})"
    cells = f"[...board.querySelectorAll('tbody tr')].map(row => row.children[{at}].textContent)"
    return f"(board => {cells})({_shown(title)})"
