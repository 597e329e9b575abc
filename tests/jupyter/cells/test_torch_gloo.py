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


GROUPS = """%%hvdrun
if dist.is_initialized():
    dist.destroy_process_group()
dist.init_process_group({default})
group = dist.new_group({members}, backend="gloo")
tensor = torch.ones(2)
if rank in {members}:
    dist.all_reduce(tensor, group=group)
tensor.tolist()
"""
IN_GROUP = """%%hvdrun
if rank == {failing}:
    raise ValueError("my bug 9")
dist.all_reduce(tensor, group=group)
"""
BOTH_RECEIVE = """%%hvdrun
if rank == 2:
    raise ValueError("my bug 9")
dist.recv(tensor, 1 - rank, group=group)
"""
STORE = """%%hvdrun
dist.init_process_group("gloo", store=dist.FileStore({file!r}, size), rank=rank, world_size=size)
tensor = torch.ones(2)
dist.all_reduce(tensor)
"""


@pytest.mark.parametrize("default", ["", '"gloo"'], ids=["core", "gloo"])
def test_failing_rank_releases_a_group_of_gloo(kernel: Kernel, default: str) -> None:
    code = GROUPS.format(default=default, members=[1, 0])
    assert kernel.run(code).shown == ["[0-1] [2.0, 2.0]"]
    failed = kernel.run(IN_GROUP.format(failing=1), allow_error=True)
    assert "my bug 9" in failed.reply["evalue"], failed.error
    assert "[0] released, because rank 1 failed" in failed.error
    assert kernel.run(code).shown == ["[0-1] [2.0, 2.0]"]
    assert kernel.run("%%hvdrun\ndist.destroy_process_group()").reply["status"] == "ok"


@pytest.mark.cluster(3, setup=("%%hvdrun\nimport os, time, torch, torch.distributed as dist",))
def test_failing_rank_releases_a_group_of_other_ranks(kernel: Kernel) -> None:
    code = GROUPS.format(default="", members=[0, 1])
    expected = ["[0-1] [2.0, 2.0]\n[2] [1.0, 1.0]"]
    assert kernel.run(code).shown == expected
    failed = kernel.run(BOTH_RECEIVE, allow_error=True)
    assert "my bug 9" in failed.reply["evalue"], failed.error
    assert "released, because rank 2 failed" in failed.error
    assert kernel.run(code).shown == expected
    assert kernel.run("%%hvdrun\ndist.destroy_process_group()").reply["status"] == "ok"


def test_failing_rank_releases_a_group_over_a_store_of_the_program(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run(STORE.format(file=str(tmp_path / "store")))
    failed = kernel.run(FAILING, allow_error=True)
    assert "my bug 7" in failed.reply["evalue"], failed.error
    assert kernel.run(SUM).shown == ["[0-1] 3.0"]
    assert kernel.run("%%hvdrun\ndist.destroy_process_group()").reply["status"] == "ok"


CREATING = """%%hvdrun
if rank == 1:
    raise ValueError("my bug 6")
dist.new_group([1, 0]{options})
"""
CREATED = """%%hvdrun
if not dist.is_initialized():
    dist.init_process_group({default})
tensor = torch.ones(2)
dist.all_reduce(tensor, group=dist.new_group([1, 0]{options}))
tensor.tolist()
"""


@pytest.mark.parametrize(
    ("default", "options"),
    [
        ("", ""),
        ("", ", backend='gloo'"),
        ("", ", use_local_synchronization=True"),
        ("", ", backend='gloo', use_local_synchronization=True"),
        ("'gloo'", ""),
        ("'gloo'", ", use_local_synchronization=True"),
    ],
)
def test_failing_rank_releases_those_that_create_a_group(kernel: Kernel, default: str, options: str) -> None:
    code = CREATED.format(default=default, options=options)
    assert kernel.run(code).shown == ["[0-1] [2.0, 2.0]"]
    failed = kernel.run(CREATING.format(options=options), allow_error=True)
    assert "my bug 6" in failed.reply["evalue"], failed.error
    assert "[0] released, because rank 1 failed" in failed.error
    assert kernel.run(code).shown == ["[0-1] [2.0, 2.0]"]
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
