"""Groups of Gloo in cells: a rank that fails releases the others, and the next cell can initialise a group again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.cluster import until
from hvdtest.kernel import Kernel

pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.timeout(400),
    pytest.mark.cluster(2, setup=("%%hvdrun\nimport os, time, torch, torch.distributed as dist",)),
]

SUM = """%%hvdrun
dist.init_process_group("gloo")
tensor = torch.tensor([rank + 1.0])
dist.all_reduce(tensor)
tensor.item()
"""
FAILING = """%%hvdrun
if rank == 1:
    raise ValueError("my bug 7")
dist.all_reduce(tensor)
"""
DDP = """%%hvdrun
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
loss = model(torch.ones(1, 2)).sum()
if rank == 1:
    raise ValueError("my bug 8")
loss.backward()
"""
WAITING = """%%hvdrun
open(f"{folder}/{{rank}}", "w").close()
if rank == 1:
    time.sleep(600)
dist.all_reduce(tensor)
"""


@pytest.mark.parametrize(("code", "message"), [(FAILING, "my bug 7"), (DDP, "my bug 8")], ids=["collective", "DDP"])
def test_failing_rank_releases_the_other(kernel: Kernel, code: str, message: str) -> None:
    assert kernel.run(SUM).shown == ["[0-1] 3.0"]
    failed = kernel.run(code, allow_error=True)
    assert failed.reply["ename"] == "ValueError", failed.error
    assert message in failed.reply["evalue"]
    assert "[0] released, because rank 1 failed" in failed.error
    assert kernel.run(SUM).shown == ["[0-1] 3.0"]
    assert kernel.run("%%hvdrun\ndist.destroy_process_group()").reply["status"] == "ok"


def test_error_of_all_ranks_leaves_the_group(kernel: Kernel) -> None:
    assert kernel.run(SUM).shown == ["[0-1] 3.0"]
    assert kernel.run("%%hvdrun\nmisspelt", allow_error=True).reply["ename"] == "NameError"
    assert kernel.run("%%hvdrun\ndist.all_reduce(tensor)\ntensor.item()").shown == ["[0-1] 6.0"]
    assert kernel.run("%%hvdrun\ndist.destroy_process_group()").reply["status"] == "ok"


def test_dead_rank_releases_the_other(kernel: Kernel) -> None:
    assert kernel.run(SUM).shown == ["[0-1] 3.0"]
    died = kernel.run("%%hvdrun\nif rank == 1:\n    os._exit(3)\ndist.all_reduce(tensor)", allow_error=True)
    assert died.reply["ename"] == "RankDied", died.error
    kernel.run("%hvd respawn")
    kernel.run("%%hvdrun\nimport torch, torch.distributed as dist")
    assert kernel.run(SUM).shown == ["[0-1] 3.0"]
    kernel.run("%hvd respawn 1 --force")  # between cells: the group has lost a rank
    kernel.run("%%hvdrun\nimport time, torch, torch.distributed as dist")
    assert kernel.run(SUM).shown == ["[0-1] 3.0"]
    assert kernel.run("%%hvdrun\ndist.destroy_process_group()").reply["status"] == "ok"


def test_interrupt_ends_a_wait(kernel: Kernel, tmp_path: Path) -> None:
    assert kernel.run(SUM).shown == ["[0-1] 3.0"]
    started = kernel.start(WAITING.format(folder=tmp_path))
    until(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks are in the cell")
    kernel.press()
    outcome = kernel.finish(started, allow_error=True)
    assert outcome.reply["ename"] == "KeyboardInterrupt", outcome.error
    assert kernel.run(SUM).shown == ["[0-1] 3.0"]
