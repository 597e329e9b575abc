"""In cells: the default group uses the cluster's engine; a cell that raises on a rank releases the others, also in groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.cluster import execute

from hvd_kernel.cluster import Session

pytestmark = [pytest.mark.jupyter, pytest.mark.cluster(2)]

SETUP = """
import torch, torch.distributed as dist
import hvd_kernel.torch as hvd
from hvd_kernel.torch.distributed import register

register()
hvd.init()
dist.init_process_group("hvd", store=dist.FileStore("{store}", hvd.size()), rank=hvd.rank(), world_size=hvd.size())
pair = dist.new_group([1, 0])
for group in (None, pair):
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
print(type(dist.group.WORLD.engine).__name__, tensor.tolist())
"""
FAILING = """
if hvd.rank() == 1:
    raise ValueError("my bug 7")
dist.all_reduce(torch.ones(2), group={group})
"""
AGAIN = """
tensor = torch.ones(2)
dist.all_reduce(tensor)  # the default group follows to the new engine
print(tensor.tolist())
dist.destroy_process_group()
"""


def test_failing_cell_releases_the_other_rank(session: Session, tmp_path: Path) -> None:
    for number, group in enumerate(("None", "pair")):
        ready = execute(session, SETUP.format(store=tmp_path / f"store{number}"))
        assert ready.text() == {0: "SharedEngine [2.0, 2.0]\n", 1: "SharedEngine [2.0, 2.0]\n"}, ready.failures
        failures = execute(session, FAILING.format(group=group)).failures
        assert {rank: (failure.ename, failure.evalue) for rank, failure in failures.items()} == {
            0: ("RankFailed", "Rank 1 failed: ValueError: my bug 7"),
            1: ("ValueError", "my bug 7"),
        }
        again = execute(session, AGAIN)
        assert again.text() == {0: "[2.0, 2.0]\n", 1: "[2.0, 2.0]\n"}, again.failures


BOTH_SEND = """
dist.send(torch.ones(2), 1 - dist.get_rank())
"""


def test_ranks_that_both_send_first_get_the_remedy(session: Session, tmp_path: Path) -> None:
    ready = execute(session, SETUP.format(store=tmp_path / "store"))
    assert not ready.failures
    failures = execute(session, BOTH_SEND).failures
    for failure in failures.values():
        assert failure.ename == "Mismatch"
        for part in ("rank 0 for SEND send.0to1.tag0.0", "rank 1 for SEND send.1to0.tag0.0", "isend and irecv"):
            assert part in failure.evalue
    assert set(failures) == {0, 1}
    again = execute(session, AGAIN)
    assert again.text() == {0: "[2.0, 2.0]\n", 1: "[2.0, 2.0]\n"}, again.failures
