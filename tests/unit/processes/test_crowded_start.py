"""Far more ranks than cores, or than the memory holds: the warning and the refusal before a start."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hvd_kernel.errors import UsageError
from hvd_kernel.launch.cli import main as hvdrun
from hvd_kernel.magics import cluster_size
from hvd_kernel.magics.cell_changes import CellChanges
from hvd_kernel.magics.cluster_manager import ClusterManager, crowd_warning
from hvd_kernel.magics.messages import crowded
from hvd_kernel.processes import limits
from hvd_kernel.processes.cluster_spec import ClusterSpec


@pytest.mark.parametrize(
    ("spec", "cores", "said"),
    [
        (ClusterSpec(40), 2, crowded(40, 2)),
        (ClusterSpec(20), 2, crowded(20, 2)),
        (ClusterSpec(19), 2, ""),
        (ClusterSpec(4), 2, ""),
        (ClusterSpec(10), 1, crowded(10, 1)),
        (ClusterSpec(40, hosts="a:20,b:20"), 2, ""),
        (ClusterSpec(40, hostfile="hosts"), 2, ""),
    ],
)
def test_ten_times_more_ranks_than_cores(spec: ClusterSpec, cores: int, said: str) -> None:
    assert crowd_warning(spec, cores) == said


def test_the_warning_has_the_counts_and_the_remedy() -> None:
    assert crowded(10, 1).startswith("10 ranks on 1 core: 10 share each core")
    assert crowded(40, 2).startswith("40 ranks on 2 cores: 20 share each core")
    assert crowded(40, 2).endswith("-np 4.")


@pytest.fixture(autouse=True)
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_memory", lambda: 22_700_000_000)


def test_warning_precedes_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(ClusterManager, "start", lambda *_, **__: told.append("start"))
    ClusterManager().ensure(ClusterSpec(40), told.append, told.append)
    assert told == [crowded(40, 2), "start"]


FREE = "22.7 GB free, room for about 45 ranks"
REFUSED = f"this machine cannot hold 1000 ranks: {FREE}; ask for at most 45 (-np), or add --force"
BESIDE = f"this machine cannot hold 1000 ranks: {FREE} beside the 4 that run; ask for at most 49 (-np), or add --force"


class Running:
    """A fake session of four ranks that refuses every request."""

    spec, n, dead = ClusterSpec(4), 4, ()
    ranks = SimpleNamespace(all={0, 1, 2, 3}, here={0, 1, 2, 3})


@pytest.mark.parametrize("change", ["start", "restart", "resize", "resize in a cell"])
def test_more_ranks_than_fit_into_memory_are_refused(change: str) -> None:
    manager, many = ClusterManager(), ClusterSpec(1000)
    if change != "start":
        manager.session = cast("Any", Running())
    session: Any = manager.session
    changes = {
        "start": lambda: manager.ensure(many, pytest.fail, pytest.fail),
        "restart": lambda: manager.start(many, pytest.fail),
        "resize": lambda: manager.ensure(many, pytest.fail, pytest.fail),
        "resize in a cell": lambda: CellChanges(session, cast("Any", None), cast("Any", None)).resize(1000),
    }
    with pytest.raises(UsageError) as refused:
        changes[change]()
    assert str(refused.value) == (REFUSED if change == "start" else BESIDE)
    manager.session = None


@pytest.mark.parametrize(
    ("spec", "running", "force"),
    [
        (ClusterSpec(45), 0, False),
        (ClusterSpec(49), 4, False),
        (ClusterSpec(1000), 0, True),
        (ClusterSpec(1000), 1000, False),
        (ClusterSpec(1000, hosts="a:500,b:500"), 0, False),
        (ClusterSpec(1000, hostfile="hosts"), 0, False),
        (ClusterSpec(1000, on="k8s"), 0, False),
    ],
)
def test_ranks_that_fit_or_run_elsewhere_are_accepted(spec: ClusterSpec, running: int, force: bool) -> None:
    cluster_size.check_room(spec, running, force=force)


def test_few_ranks_are_accepted_with_any_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "free_memory", lambda: 0)
    cluster_size.check_room(ClusterSpec(limits.ALWAYS), 0, force=False)
    with pytest.raises(UsageError, match="room for about 0 ranks; ask for at most 8"):
        cluster_size.check_room(ClusterSpec(limits.ALWAYS + 1), 0, force=False)


@pytest.mark.parametrize(("np", "warned"), [(45, ""), (46, "this machine cannot hold 46 ranks: ")])
def test_hvdrun_warns_of_more_ranks_than_fit(
    np: int, warned: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hvdrun, "launch", lambda _job: SimpleNamespace(status=0))
    assert hvdrun.main(["-np", str(np), "true"]) == 0
    assert (warned in capsys.readouterr().err) == bool(warned) or not warned
