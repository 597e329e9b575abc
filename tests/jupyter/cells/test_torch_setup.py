"""In cells: ``init_process_group()`` needs no set-up, also after ranks were replaced, added and removed."""

from __future__ import annotations

import pytest
from hvdtest.cluster import execute

from hvd_kernel.cluster import Session

pytestmark = [pytest.mark.jupyter, pytest.mark.cluster(2)]

SUMS = """
import os, torch, torch.distributed as dist
sums = []
for backend in ([], ["gloo"], ["hvd"]):
    dist.init_process_group(*backend)
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor)
    sums.append((type(dist.group.WORLD).__name__, tensor.item()))
    dist.destroy_process_group()
print(*(os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")), sums)
"""


def sums_are_right(session: Session, size: int) -> None:
    """Check the sums over default groups of three backends, and the variables, on every rank."""
    total = size * (size + 1) / 2
    sums = [("HvdProcessGroup", total), ("ProcessGroup", total), ("HvdProcessGroup", total)]
    done = execute(session, SUMS)
    expected = {rank: f"{rank} {size} {rank} {size} 127.0.0.1 {sums}\n" for rank in range(size)}
    assert done.text() == expected, done.failures


def test_groups_need_no_setup(session: Session) -> None:
    sums_are_right(session, 2)


def test_groups_of_other_generations(own: Session) -> None:
    sums_are_right(own, 2)
    own.respawn([0], force=True)
    sums_are_right(own, 2)
    own.resize(3)
    sums_are_right(own, 3)
    own.resize(2, [0])  # renumbers the others
    sums_are_right(own, 2)


APART = """
import os, torch.distributed as dist
from torch.distributed import Backend
names = [name for name in ("RANK", "WORLD_SIZE", "MASTER_PORT") if name in os.environ]
print(names, Backend.default_device_backend_map["cpu"], hvd.size())
"""


def test_independent_cell_sees_no_other_ranks(session: Session) -> None:
    alone = execute(session, APART, independent=True)
    assert alone.text() == dict.fromkeys(range(2), "[] gloo 2\n"), alone.failures
    together = execute(session, APART)
    assert together.text() == dict.fromkeys(range(2), "['RANK', 'WORLD_SIZE', 'MASTER_PORT'] hvd 2\n")
    sums_are_right(session, 2)


FAILED_EARLIER = """
import torch, torch.distributed as dist
from hvd_kernel.frameworks import torch_connections

dist.init_process_group()
torch_connections.close()  # as a rank does that has failed
tensor = torch.ones(2)
dist.all_reduce(tensor, group=dist.new_group([1, 0]))  # over the store of the default group
print(torch_connections.are_closed(), tensor.tolist())
dist.destroy_process_group()
"""


def test_failed_rank_keeps_the_store_of_a_group_on_the_core(session: Session) -> None:
    done = execute(session, FAILED_EARLIER)
    assert done.text() == dict.fromkeys(range(2), "False [2.0, 2.0]\n"), done.failures
