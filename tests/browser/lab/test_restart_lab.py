"""The restart entry of JupyterLab's menu: detached ranks survive, others exit with their kernel."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hvdtest.cluster import until
from hvdtest.lab import Lab, Notebook, write_notebook

from hvd_kernel.processes import detached

pytestmark = [pytest.mark.nightly, pytest.mark.browser, pytest.mark.jupyter, pytest.mark.timeout(400)]
CELLS = [
    "%%hvdrun -np 2 --keep\nx = 10 + rank",
    "%hvd attach",
    "%%hvdrun\nx",
    "%hvd stop",
    "%%hvdrun -np 2\nx = 20 + rank",
    "%%hvdrun -np 2\nimport torch\n'x' in globals(), int(hvd.allreduce(torch.tensor(rank + 1), op=hvd.Sum))",
]
OUTPUTS = "[...document.querySelectorAll('.jp-Cell')].map(c => c.querySelector('.jp-OutputArea')?.innerText ?? '')"
PROMPTS = "[...document.querySelectorAll('.jp-InputPrompt')].map(p => p.textContent)"


@pytest.fixture
def home(lab: Lab, place: Path) -> Iterator[Path]:
    """Detached clusters are found where Lab's kernels have their temporary files; a test that fails leaves none there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(lab.scratch))
        yield place
        for each in detached.clusters():
            os.kill(int(each.holder.partition(":")[0]), signal.SIGKILL)


def run(notebook: Notebook, cell: int, count: int, shown: str = "") -> None:
    """Run a cell; return when it has ended as the kernel's number ``count`` and shows this text, below a panel if it was slow."""
    notebook.run(cell)
    notebook.wait(f"{PROMPTS}[{cell}].includes('[{count}]')")
    notebook.wait(f"{OUTPUTS}[{cell}].includes({json.dumps(shown)})")


def restart(lab: Lab, notebook: Notebook) -> None:
    [before] = lab.running("hvd_kernel.kernel")
    notebook.menu("Kernel", "Restart Kernel…")
    notebook.page.click(".jp-Dialog button.jp-mod-warn")
    until(lambda: not before.is_running(), "the kernel has ended")
    until(lambda: lab.running("hvd_kernel.kernel"), "another one has begun")
    notebook.await_kernel()


def test_a17_restart_by_menu_keeps_detached_ranks_alone(lab: Lab, home: Path) -> None:
    with lab.browser(height=1250) as page:
        notebook = page.open(write_notebook(home / "restart.ipynb", *CELLS))
        run(notebook, 0, 1, "kept as ranks: after a restart of this kernel `%hvd attach` has them")
        restart(lab, notebook)
        run(notebook, 1, 1, "ranks: ranks 0-1 ready, with all variables")
        run(notebook, 2, 2, "[0] 10\n[1] 11")
        notebook.shoot(home / "shots" / "attached.png")
        run(notebook, 3, 3, "the ranks are stopped")
        assert detached.clusters() == []

        run(notebook, 4, 4)
        ranks = lab.running("hvd_kernel.worker") + lab.running("hvd_kernel.cluster")
        assert len(ranks) >= 3, "two ranks and what holds them"
        restart(lab, notebook)
        _, left = psutil.wait_procs(ranks, timeout=60)
        assert left == [], "the kernel was restarted, but its ranks still run"
        run(notebook, 5, 1, "[0-1] (False, 3)")
        notebook.shoot(home / "shots" / "fresh.png")
        assert page.errors == []
