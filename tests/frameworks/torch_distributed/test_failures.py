"""Failures: an error on one rank releases the others, in scripts too; bad input gets an error with cause and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hvdtest.exact import raises
from hvdtest.hvdrun import hvdrun, lines_of
from hvdtest.launch import RankPool
from hvdtest.lazy import hvd, torch
from hvdtest.pools import layouts
from hvdtest.torch_worlds import world

pytestmark = pytest.mark.mp

layout = layouts((2, "shm"), nightly=((2, "tcp"),))


def released(where: str, folder: str) -> Any:
    """The last rank aborts while rank 0 waits; return rank 0's error."""
    from hvd_kernel.core import session
    from hvd_kernel.errors import HorovodInternalError

    waiting = Path(folder) / "waiting"
    with world("hvd", folder) as dist:
        group = dist.new_group([1, 0]) if where == "subgroup" else dist.group.WORLD
        model = torch.nn.Linear(2, 2)
        wrapped = torch.nn.parallel.DistributedDataParallel(model) if where == "backward" else model
        dist.barrier(group)
        if hvd.rank() > 0:
            while not waiting.exists():
                pass
            session.engine().abort("ValueError: my bug 7")
            return None
        try:
            if where == "backward":
                output = wrapped(torch.ones(1, 2)).sum()
                waiting.touch()
                output.backward()
            else:
                work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
                waiting.touch()
                _ = work.get_future().wait() if where == "future" else work.wait()
        except HorovodInternalError as error:
            return [type(error).__name__, str(error)]
        except RuntimeError as error:
            return ["RuntimeError", str(error)]
    return "no error"


@pytest.mark.parametrize("where", ["wait", "future", "backward", "subgroup"])
def test_error_releases_the_other_rank(ranks: RankPool, where: str, tmp_path: Path) -> None:
    (kind, message), nothing = ranks.run(released, where, str(tmp_path))
    assert nothing is None
    assert kind == (
        "RankFailed" if where in {"wait", "subgroup"} else "RuntimeError"
    )  # torch's futures keep text alone
    assert "my bug 7" in message
    assert ranks.run(working_again, str(tmp_path)) == [float(ranks.np)] * ranks.np


def working_again(folder: str) -> float:
    hvd.shutdown()
    hvd.init()
    with world("hvd", folder) as dist:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        return tensor.item()


SCRIPT = """
import os, torch, torch.distributed as dist
from hvd_kernel.errors import HorovodInternalError
from hvd_kernel.torch.distributed import register
register()
rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
dist.init_process_group("hvd", store=dist.FileStore(os.environ["STORE"], size), rank=rank, world_size=size)
tensor = torch.ones(1)
dist.all_reduce(tensor)
print(tensor.item(), flush=True)
if rank == 1:
    raise ValueError("my bug 7")
try:
    dist.all_reduce(tensor)
except HorovodInternalError as error:
    print(type(error).__name__, flush=True)
    raise
"""


def test_script_whose_rank_raises(mark: str, tmp_path: Path) -> None:
    done = hvdrun("-np", "2", script=SCRIPT, STORE=str(tmp_path / "store"))
    assert done.returncode != 0
    assert lines_of(done.stdout, 1) == ["2.0"]
    first, *errors = lines_of(done.stdout, 0)
    assert first == "2.0"
    assert set(errors) <= {"HorovodInternalError", "RankDied"}  # rank 1 shuts down at its exit; hvdrun may be faster
    assert "my bug 7" in done.stderr


def bad_input(folder: str) -> bool:
    """Each error is raised before anything is sent, so that the group goes on."""
    from hvd_kernel.torch.distributed import checks, reductions

    rank, size = hvd.rank(), hvd.size()
    with world("hvd", folder) as dist:
        group, one = dist.group.WORLD, torch.ones(2)
        layout = checks.NOT_DENSE.format(layout=torch.sparse_coo)
        raises(ValueError, layout, group.allreduce, [one.to_sparse()])
        raises(ValueError, checks.NOT_ON_CPU.format(device="meta"), group.allreduce, [one.to("meta")])
        raises(TypeError, checks.NOT_A_TENSOR.format(kind="int"), group.allreduce, [1])
        bitwise = reductions.NOT_BITWISE.format(op="BAND", dtype=torch.float32)
        raises(ValueError, bitwise, dist.all_reduce, one, dist.ReduceOp.BAND)
        raises(ValueError, "use another reduction than Min", group.allreduce, [one * 1j], dist.ReduceOp.MIN)
        count = {"unit": "elements", "count": 3, "expected": 2 * size}
        text = checks.OTHER_COUNT.format(operation="all_gather", **count)
        raises(ValueError, text, group.all_gather_single, torch.empty(3), one)
        mixed = checks.OTHER_DTYPE.format(operation="all_reduce", first=torch.float32, other=torch.float64)
        raises(ValueError, mixed, group.allreduce_coalesced, [one, one.double()])
        raises(ValueError, checks.NO_TENSORS.format(operation="all_reduce"), group.allreduce_coalesced, [])
        root = checks.NO_SUCH_ROOT.format(operation="broadcast", root=size, last=size - 1)
        raises(ValueError, root, group.broadcast, one, size)
        rows = checks.UNEVEN_ROWS.format(rows=size + 1, side="input", size=size)
        raises(ValueError, rows, group.all_to_all_single, torch.empty(size), torch.empty(size + 1))
        splits = checks.OTHER_ROWS.format(side="input", splits=[1] * (size + 1), size=size, rows=size)
        wrong = (torch.empty(size), torch.empty(size), [], [1] * (size + 1))
        raises(ValueError, splits, group.all_to_all_single, *wrong)
        raises(ValueError, "expanded", dist.all_reduce, torch.ones(1).expand(3))
        outputs = [torch.empty(1 + (number != rank)) for number in range(size)]
        received = checks.OTHER_RECEIVED.format(received=size, expected=2 * size - 1)
        raises(ValueError, received, dist.all_gather, outputs, torch.ones(1))
        wrong = [2, 0, *[1] * (size - 2)]
        received = checks.OTHER_RECEIVED.format(received=[1] * size, expected=wrong)
        outputs = [torch.empty(count) for count in wrong]
        raises(ValueError, received, dist.all_to_all, outputs, [torch.ones(1) for _ in range(size)])
        raises(ValueError, received, dist.all_to_all_single, torch.empty(size), torch.ones(size), wrong)
        dist.barrier()
    return True


def test_bad_input(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(bad_input, str(tmp_path)) == [True] * ranks.np
