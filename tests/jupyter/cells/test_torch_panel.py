"""The panel of cells that train by torch.distributed: steps, samples, names of operations, and which rank is awaited."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hvdtest.cluster import Outcome, drain, execute
from hvdtest.gate import Gate
from hvdtest.kernel import Kernel

from hvd_kernel.cluster import CellExecution, Session
from hvd_kernel.diagnosis.inquiry import locate
from hvd_kernel.diagnosis.stall import StallMonitor, report
from hvd_kernel.formatting.operation_names import OTHER_BACKEND
from hvd_kernel.protocol.messages import MetricsSample
from hvd_kernel.protocol.operations import Recent

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(240), pytest.mark.cluster(2)]

RANKS = range(2)
PATIENCE_S = 100.0
STEPS, BATCH = 12, 32
REDUCES = "torch all_reduce (default group)"

MODEL = """
import torch, torch.distributed as dist
from torch import nn
if dist.is_initialized():
    dist.destroy_process_group()
dist.init_process_group("{backend}")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
batch = torch.randn(32, 16)
"""
DDP = "model = nn.parallel.DistributedDataParallel(model)"
FSDP = """
from torch.distributed.fsdp import fully_shard
for part in (model[0], model[2], model):
    fully_shard(part)
"""
TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
"""
TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(12):
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


def trained(session: Session, backend: str, wrap: str) -> Outcome:
    """Train in one cell, and check the steps and samples that the panel got from each rank."""
    before = {event.rank: event for event in execute(session, "1").samples}
    outcome = execute(session, MODEL.format(backend=backend) + wrap + TRAIN)
    assert not outcome.failures
    last = {event.rank: event for event in outcome.samples}
    counted = {rank: (last[rank].step - before[rank].step, last[rank].samples - before[rank].samples) for rank in RANKS}
    assert counted == dict.fromkeys(RANKS, (STEPS, (STEPS - 1) * BATCH))  # the first step finds the model
    return outcome


def operations(session: Session) -> set[str]:
    """Return the names in the timeline of the last cell, on any rank."""
    answers = session.ask("recent", list(RANKS), {"seconds": None, "cursors": {}, "over": True})
    names = {
        rank: {operation.name for operation in Recent.of(content).operations} for rank, (content, _) in answers.items()
    }
    assert names[0] == names[1]
    return names[0]


def test_ddp_on_the_core(session: Session) -> None:
    trained(session, "hvd", DDP)
    names = operations(session)
    assert REDUCES in names
    assert {name for name in names if name.startswith("torch")} <= {
        *(f"torch {kind} (default group)" for kind in ("all_reduce", "broadcast", "all_gather")),
        *(name for name in names if name.startswith("torch_store")),
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("wrap", "kinds"), [(FSDP, {"all_gather", "reduce_scatter"}), (TENSOR_PARALLEL, {"all_reduce"})]
)
def test_fsdp_and_tensor_parallel_on_the_core(session: Session, wrap: str, kinds: set[str]) -> None:
    trained(session, "hvd", wrap)
    names = " ".join(operations(session))
    for kind in kinds:
        assert f"torch {kind} (" in names


@pytest.mark.nightly
def test_ddp_on_gloo(session: Session) -> None:
    trained(session, "gloo", DDP)
    assert not execute(session, "dist.destroy_process_group()").failures


WAITS = """\
if rank == 1:
    {hold}
{wait}
"""
IN_BACKWARD = "model(batch).sum().backward()"


def explained(session: Session, run: CellExecution) -> tuple[str, set[str], str]:
    """Return why the ranks of a run wait, the operations in which the panel showed rank 0, and the stacks."""
    monitor = StallMonitor(session, RANKS)
    shown: set[str] = set()
    deadline = time.monotonic() + PATIENCE_S
    while not monitor.sentence:
        event = run.next(0.1)
        if isinstance(event, MetricsSample):
            monitor.observe(event)
            if event.rank == 0 and event.state == "collective":
                shown.add(event.waiting_for)
        monitor.tick()
        assert time.monotonic() < deadline
        assert not run.done
    return monitor.sentence, shown, report(locate(session, RANKS, PATIENCE_S))


def waited(session: Session, folder: Path, wait: str) -> tuple[str, set[str], str]:
    """Run a cell in which rank 0 waits for rank 1; return what is shown meanwhile."""
    with Gate(folder) as gate:
        run = session.run(WAITS.format(hold=gate.hold, wait=wait), cell=5)
        found = explained(session, run)
    assert not drain(run, PATIENCE_S).failures
    return found


LATE = "waits for rank 1, which is in cell 5:2: while not __import__('os')"


def test_a_wait_in_backward_names_the_operation_and_the_rank(session: Session, tmp_path: Path) -> None:
    assert not execute(session, MODEL.format(backend="hvd") + DDP).failures
    sentence, shown, stacks = waited(session, tmp_path, IN_BACKWARD)
    assert sentence.startswith(f"{REDUCES} {LATE}")
    assert shown == {REDUCES}
    assert f"[0] waiting in {REDUCES}\n    cell 5:3: {IN_BACKWARD}" in stacks


def test_a_wait_on_gloo_names_the_function_and_the_rank(session: Session, tmp_path: Path) -> None:
    assert not execute(session, MODEL.format(backend="gloo")).failures
    sentence, shown, stacks = waited(session, tmp_path, "dist.all_reduce(batch)")
    assert sentence.startswith(f"{OTHER_BACKEND}all_reduce {LATE}")
    assert shown == {f"{OTHER_BACKEND}all_reduce, cell 5:3"}
    assert f"[0] waiting in {OTHER_BACKEND}all_reduce\n    cell 5:3: dist.all_reduce(batch)" in stacks
    assert not execute(session, "dist.destroy_process_group()").failures


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("wait", "name"),
    [
        ("dist.barrier()", "barrier"),
        ("dist.recv(batch, 1) if rank == 0 else dist.send(batch, 0)", "recv"),
        ("dist.all_gather_object([None, None], rank)", "all_gather_object"),
        (
            "torch.distributed._functional_collectives.all_reduce(batch, 'sum', dist.group.WORLD) + 1",
            "wait_tensor()",
        ),
        (DDP + "\n" + IN_BACKWARD, "backward()"),
    ],
)
def test_other_waits_on_gloo(session: Session, tmp_path: Path, wait: str, name: str) -> None:
    assert not execute(session, MODEL.format(backend="gloo")).failures
    if wait.startswith(DDP):
        assert not execute(session, DDP).failures
        wait = IN_BACKWARD
    sentence, _, _ = waited(session, tmp_path, wait)
    assert sentence.startswith(f"{OTHER_BACKEND}{name} {LATE}")
    assert not execute(session, "dist.destroy_process_group()").failures


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("wait", "name"),
    [
        ("dist.recv(batch, 1) if rank == 0 else dist.send(batch, 0)", "torch send from rank 1 to rank 0"),
        ("torch.distributed._functional_collectives.all_reduce(batch, 'sum', dist.group.WORLD) + 1", REDUCES),
        ("dist.broadcast(batch, 1, group=pair)", "torch broadcast (ranks 0-1)"),
        ("dist.all_reduce(batch, group=turned, async_op=True).wait()", "torch all_reduce (ranks 0-1)"),
    ],
)
def test_other_waits_on_the_core(session: Session, tmp_path: Path, wait: str, name: str) -> None:
    groups = "\npair, turned = dist.new_group([0, 1]), dist.new_group([1, 0])"
    assert not execute(session, MODEL.format(backend="hvd") + groups).failures
    sentence, shown, _ = waited(session, tmp_path, wait)
    assert sentence.startswith(f"{name} {LATE}")
    assert shown == {name}


@pytest.mark.nightly
def test_the_error_of_a_timeout_names_the_rank_that_gloo_waits_for(kernel: Kernel) -> None:
    kernel.run("%%hvdrun\n" + MODEL.format(backend="gloo"))
    cell = "%%hvdrun --timeout 4\nimport time\nif rank == 1:\n    time.sleep(60)\ndist.all_reduce(batch)"
    failed = kernel.run(cell, allow_error=True)
    assert failed.reply["ename"] == "HvdTimeout", failed.error
    assert f"{OTHER_BACKEND}all_reduce waits for rank 1, which is in cell" in failed.error
    assert kernel.run("%%hvdrun\ndist.is_initialized()").shown == ["[0-1] False"], "it was closed to release rank 0"


@pytest.mark.nightly
def test_backward_fails_after_a_rank_ended_without_it(session: Session) -> None:
    assert not execute(session, MODEL.format(backend="hvd") + DDP).failures
    failures = execute(session, f"if rank == 0:\n    {IN_BACKWARD}", cell=6).failures
    assert set(failures) == {0}
    assert "at cell 6:2; rank 1 has ended the cell. " in failures[0].evalue


@pytest.mark.nightly
def test_an_interrupt_ends_a_wait_of_gloo_in_backward(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%%hvdrun\nimport time\n" + MODEL.format(backend="gloo") + DDP)
    with Gate(tmp_path) as gate:
        cell = f"%%hvdrun\n{gate.arrive}\nif rank == 1:\n    time.sleep(600)\n{IN_BACKWARD}"
        started = kernel.start(cell)
        gate.wait_for(0, 1)
        kernel.press()
        outcome = kernel.finish(started, allow_error=True)
    assert outcome.reply["ename"] == "KeyboardInterrupt", outcome.error
    kernel.run("%%hvdrun\n" + MODEL.format(backend="gloo") + "dist.destroy_process_group()")
