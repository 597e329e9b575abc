"""Far more ranks than cores: what is said before the start, which takes minutes then."""

from __future__ import annotations

import os

import pytest

from hvd_kernel.magics.cluster_manager import ClusterManager, crowd
from hvd_kernel.processes.cluster_spec import ClusterSpec

SAID = (
    "40 ranks on 2 cores: 20 take turns on each, and the start may take minutes. "
    "If fewer will do, interrupt it and say, for example, -np 4."
)


@pytest.mark.parametrize(
    ("spec", "cores", "said"),
    [
        (ClusterSpec(40), 2, SAID),
        (ClusterSpec(20), 2, SAID.replace("40", "20", 1).replace("20 take", "10 take")),
        (ClusterSpec(19), 2, ""),
        (ClusterSpec(4), 2, ""),
        (ClusterSpec(10), 1, SAID.replace("40", "10").replace("2 cores: 20", "1 core: 10").replace("-np 4", "-np 2")),
        (ClusterSpec(40, hosts="a:20,b:20"), 2, ""),
        (ClusterSpec(40, hostfile="hosts"), 2, ""),
    ],
)
def test_ranks_that_outnumber_the_cores_tenfold(spec: ClusterSpec, cores: int, said: str) -> None:
    assert crowd(spec, cores) == said


def test_it_is_said_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(ClusterManager, "start", lambda *_: told.append("start"))
    ClusterManager().ensure(ClusterSpec(40), told.append, told.append)
    assert told == [SAID, "start"]
