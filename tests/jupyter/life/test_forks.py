"""Child processes of a cell are like those of any Python process: they receive signals, and a Pool ends."""

from __future__ import annotations

import pytest
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.cluster(2)]

POOLS = """%%hvdrun
from multiprocessing import get_context
def square(x):
    return x * x
def pools(number):
    for _ in range(number):
        with get_context("fork").Pool(2) as pool:  # leaving it is Pool.terminate: SIGTERM to each child
            assert pool.map(square, range(3)) == [0, 1, 4]
    return number
pools({number})
"""
SIGNALS = """%%hvdrun
import os, signal, time
from multiprocessing import get_context
def handlers(answers):
    own = [signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, signal.getsignal(signal.SIGINT) is signal.default_int_handler]
    answers.put((own, sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))))
def sleeper(answers):
    answers.put("ready")
    time.sleep(600)
fork = get_context("fork")
answers = fork.SimpleQueue()
one = fork.Process(target=handlers, args=(answers,))
one.start()
said = answers.get()
one.join()
two = fork.Process(target=sleeper, args=(answers,))
two.start()
answers.get()
two.terminate()
two.join()
said, two.exitcode
"""


@pytest.mark.parametrize("number", [10, pytest.param(100, marks=pytest.mark.nightly)])
def test_pools_in_a_cell_end(kernel: Kernel, number: int) -> None:
    assert kernel.run(POOLS.format(number=number), timeout=250).shown == [f"[0-1] {number}"]


def test_child_handles_signals_like_any_python_process(kernel: Kernel) -> None:
    assert kernel.run(SIGNALS).shown == ["[0-1] (([True, True], []), -15)"]
