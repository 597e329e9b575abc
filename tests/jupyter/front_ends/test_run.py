"""``hvd_kernel.run`` in a notebook: it uses the ranks of ``%%hvdrun``, which keep running."""

from __future__ import annotations

import re

import pytest
from hvdtest.kernel import Kernel

FIRST = """
import hvd_kernel, os
def total(scale, power=1):
    import torch, hvd_kernel.torch as hvd
    hvd.init()
    print("on", hvd.rank())
    return hvd.rank(), hvd.allreduce(torch.full((2,), scale * (hvd.rank() + 1.0) ** power), op=hvd.Sum).tolist()
"""


pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.timeout(400),
    pytest.mark.cluster(2, setup=(FIRST,)),
]


def test_first_call_starts_ranks_and_the_second_reuses_them(kernel: Kernel) -> None:
    outcome = kernel.run("hvd_kernel.run(total, (10,), {'power': 2}, np=2)", timeout=120)
    assert outcome.shown == ["[(0, [50.0, 50.0]), (1, [50.0, 50.0])]"]
    assert outcome.text() == "[0] on 0\n[1] on 1\n"
    first, second = (kernel.run("hvd_kernel.run(os.getpid, np=2)").shown for _ in range(2))
    assert first == second, "the same processes"
    found = kernel.run("%%hvdrun -np 2\nimport os; os.getpid()").shown[0]
    assert re.findall(r"\d{3,}", found) == re.findall(r"\d{3,}", first[0]), "those that the first call has started"


def test_run_uses_the_ranks_of_the_cells(kernel: Kernel) -> None:
    kernel.run("%%hvdrun -np 2\nmine = 'kept'", timeout=120)
    pids = kernel.run("%%hvdrun\nimport os; os.getpid()").shown[0]
    found = kernel.run("hvd_kernel.run(os.getpid, np=2)").shown[0]
    assert re.findall(r"\d{3,}", found) == re.findall(r"\d{3,}", pids)
    assert kernel.run("%%hvdrun\nmine").shown == ["[0-1] 'kept'"]


def test_exception_of_the_worker_is_the_cause(kernel: Kernel) -> None:
    kernel.run("%%hvdrun -np 2\nmine = 'kept'", timeout=120)
    cell = """
class Bad(Exception):
    pass
def fails(which):
    import hvd_kernel.torch as hvd
    if hvd.rank() == which:
        raise Bad("shard", which)
    hvd.barrier()
try:
    hvd_kernel.run(fails, (1,), np=2)
except RuntimeError as error:
    caught = error
(type(caught).__name__, caught.rank, type(caught.__cause__) is Bad, caught.__cause__.args)
"""
    assert kernel.run(cell).shown == ["('RankFailed', 1, True, ('shard', 1))"]
    text = kernel.run("print(caught)").text()
    assert text.startswith("rank 1 of 2 raised Bad: ('shard', 1)\n\nTraceback (most recent call last):\n")
    assert 'raise Bad("shard", which)' in text, "the line of the notebook's cell is shown"
    assert kernel.run("hvd_kernel.run(total, (1,), np=2)").shown == ["[(0, [3.0, 3.0]), (1, [3.0, 3.0])]"]
    assert kernel.run("%%hvdrun\nmine").shown == ["[0-1] 'kept'"]


def test_function_that_shuts_down_leaves_working_ranks(kernel: Kernel) -> None:
    cell = """
def whole_script():
    import hvd_kernel.torch as hvd
    hvd.init()
    hvd.barrier()
    hvd.shutdown()
hvd_kernel.run(whole_script, np=2)
"""
    assert kernel.run(cell, timeout=120).shown == ["[None, None]"]
    assert kernel.run("hvd_kernel.run(total, (1,), np=2)").shown == ["[(0, [3.0, 3.0]), (1, [3.0, 3.0])]"]
    assert kernel.run("%%hvdrun\nhvd.size()").shown == ["[0-1] 2"]


@pytest.mark.nightly
def test_other_number_of_ranks_is_new_and_loses_nothing(kernel: Kernel) -> None:
    kernel.run("%%hvdrun -np 2\nmine = 'kept'", timeout=120)
    cell = "def size():\n    import hvd_kernel.torch as hvd\n    hvd.init()\n    return hvd.size()\nhvd_kernel.run(size, np=1)"
    assert kernel.run(cell, timeout=120).shown == ["[1]"]
    assert kernel.run("hvd_kernel.run(os.getenv, ('A',), np=2, env={'A': 'b'})", timeout=120).shown == ["['b', 'b']"]
    assert kernel.run("%%hvdrun\nmine").shown == ["[0-1] 'kept'"]


@pytest.mark.nightly
def test_a_killed_rank_is_named(kernel: Kernel) -> None:
    cell = """
def dies():
    import os, signal, hvd_kernel.torch as hvd
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.barrier()
hvd_kernel.run(dies, np=2)
"""
    kernel.run("%%hvdrun -np 2", timeout=120)
    outcome = kernel.run(cell, allow_error=True)
    assert outcome.reply["ename"] == "RankDied"
    assert "rank 1" in outcome.reply["evalue"]
    kernel.run("%hvd restart", timeout=120)
    assert kernel.run("hvd_kernel.run(total, (1,), np=2)").shown == ["[(0, [3.0, 3.0]), (1, [3.0, 3.0])]"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "reuse=True, env={'A': 'b'}",
            "UsageError: run(reuse=True) is not possible: env is fixed when a rank starts",
        ),
        ("np=0", "ConfigError: run(np=0) cannot be used: give a number of ranks"),
    ],
)
def test_refusals(kernel: Kernel, call: str, message: str) -> None:
    assert message in kernel.run(f"hvd_kernel.run(total, (1,), {call})", allow_error=True).error
