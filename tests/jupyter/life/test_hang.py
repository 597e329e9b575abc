"""A test that hangs fails alone: its error has the stacks of the kernel and each rank, and the next test has new ones."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hvdtest.gate import Gate
from hvdtest.kernel import Kernel, tagged
from hvdtest.where import Silence

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400)]

HANGS = """%%hvdrun
import time
def never_comes():
    time.sleep(600)
def waits_for_rank_1():
    {arrive}
    hvd.barrier()
if rank: {arrive}; never_comes()
waits_for_rank_1()
"""


def hang(kernel: Kernel, folder: Path) -> tuple[str, float]:
    kernel.run("%%hvdrun -np 2\n1", timeout=120)
    with Gate(folder) as gate:
        started = kernel.start(HANGS.format(arrive=gate.arrive))
        gate.wait_for(0, 1)
    return started


def the_tests_time_is_over(kernel: Kernel, started: tuple[str, float]) -> None:
    """As pytest-timeout ends a test: from a signal's handler, wherever the test waits."""
    before = signal.signal(signal.SIGUSR2, lambda *_: pytest.fail("Timeout (>300.0s) from pytest-timeout."))
    main = threading.main_thread().ident
    assert main is not None
    press = threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGUSR2))
    try:
        press.start()
        kernel.finish(started)
    finally:
        signal.signal(signal.SIGUSR2, before)


def the_cells_time_is_over(kernel: Kernel, started: tuple[str, float]) -> None:
    kernel.finish(started, timeout=0.0)


@pytest.mark.nightly
@pytest.mark.parametrize("ends", [the_cells_time_is_over, the_tests_time_is_over], ids=lambda how: how.__name__)
def test_hung_test_reports_waiting_ranks_and_ends_them(
    tmp_path: Path, ends: Callable[[Kernel, tuple[str, float]], None]
) -> None:
    with pytest.raises((Silence, pytest.fail.Exception)) as caught, Kernel(tmp_path) as kernel:
        ends(kernel, hang(kernel, tmp_path))
    said = str(caught.value)
    rooms = dict.fromkeys(re.findall(r"^process \d+, (\w+), ", said, re.MULTILINE))
    assert set(rooms) == {"kernel", "supervisor", "launcher", "rank"}, said
    parts = re.split(r"^process \d+, ", said, flags=re.MULTILINE)
    assert sum("never_comes" in part for part in parts if part.startswith("rank, ")) == 1, said
    assert sum("waits_for_rank_1" in part for part in parts if part.startswith("rank, ")) == 1, said
    assert any("magics/cell_view.py" in part for part in parts if part.startswith("kernel, ")), said
    assert tagged(kernel.tag) == {}
