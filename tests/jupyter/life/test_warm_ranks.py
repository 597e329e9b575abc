"""Warm ranks: a set that has run no cell waits for the next notebook, is given once, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.cluster import hurry, living, processes_below, until
from hvdtest.kernel import Kernel
from hvdtest.where import tagged

from hvd_kernel.cluster import warm_ranks
from hvd_kernel.processes import warm
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.warm import WarmCluster

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(600)]

NOTHING_YET = "[each for each in ('mine', 'torch') if each in globals()]"
WHERE = "import os, sys\nprint(os.getcwd(), os.environ.get('JPY_SESSION_NAME'), 'torch._dynamo' in sys.modules)"


class Pool:
    """A temporary folder of our own, and kernels of one user in it: their ranks would be the same."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.tag = uuid.uuid4().hex
        self.env = {"HVD_POOL": "5", "HVD_SPARES": "0", "HVD_TEST_TAG": self.tag, "JPY_SESSION_NAME": "a.ipynb"}

    def kernel(self, **env: str) -> Kernel:
        return Kernel(self.home, env={**self.env, **env})

    def ready(self, number: int = 1) -> list[WarmCluster]:
        """Return the waiting ranks once there are this many; they get their share of a busy machine."""
        until(lambda: self._ready(number), f"{number} sets of warm ranks", 240)
        return warm.clusters()

    def _ready(self, number: int) -> bool:
        for each in warm.clusters():
            for pid in processes_below(supervisor_of(each)):
                hurry(pid)
        return sum(each.note.ready for each in warm.clusters()) == number

    @property
    def processes(self) -> dict[int, str]:
        return tagged(f"HVD_TEST_TAG={self.tag}")


def pids(status: str) -> list[str]:
    return re.findall(r"^\d +alive +(\d+)", status, re.MULTILINE)


def supervisor_of(found: WarmCluster) -> int:
    return int(found.holder.partition(":")[0])


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = Pool(tmp_path)
    monkeypatch.setenv("HVD_TEST_TAG", made.tag)
    yield made
    for each in warm.clusters():
        warm_ranks.end(each)
    until(lambda: not living(set(made.processes)), "nothing is left")
    assert list(tmp_path.glob("hvd-*")) == []


@pytest.mark.nightly
def test_next_notebook_gets_unused_ranks(pool: Pool) -> None:
    with pool.kernel() as first:
        first.run("%%hvdrun -np 2\nmine = rank", timeout=120)
        [waiting] = pool.ready()
        everything = {supervisor_of(waiting)} | processes_below(supervisor_of(waiting))
        assert waiting.sentence.startswith("2 warm ranks, ready, for ")
        assert waiting.sentence in first.run("%hvd clean --dry-run").text()
        assert not set(pids(first.run("%hvd status").text())) & {str(pid) for pid in everything}
    assert living(everything) == everything, "they do not end with the notebook that has started them"
    elsewhere = pool.home / "elsewhere"
    elsewhere.mkdir()
    with pool.kernel(JPY_SESSION_NAME="b.ipynb") as second:
        second.run(f"import os; os.chdir({str(elsewhere)!r})")
        assert second.run(f"%%hvdrun -np 2\n{NOTHING_YET}", timeout=120).shown == ["[0-1] []"]
        got = {int(pid) for pid in pids(second.run("%hvd status").text())}
        assert got < everything, "it has the ranks that waited"
        assert second.run(f"%%hvdrun\n{WHERE}").text() == f"[0-1] {elsewhere} b.ipynb True\n"
        total = "import torch\nint(hvd.allreduce(torch.tensor(rank + 1), op=hvd.Sum))"
        assert second.run(f"%%hvdrun\n{total}").shown == ["[0-1] 3"]
        [after] = pool.ready()
        assert after.holder != waiting.holder, "another set waits"
    until(lambda: not living(everything), "given once, they end with the notebook that has them")


@pytest.mark.nightly
def test_ranks_with_other_settings_are_not_used(pool: Pool) -> None:
    with pool.kernel() as first:
        first.run("%%hvdrun -np 2\n0", timeout=120)
        [waiting] = pool.ready()
    with pool.kernel(MINE="1") as other:
        assert other.run("%%hvdrun -np 2\nimport os\nos.environ['MINE']", timeout=120).shown == ["[0-1] '1'"]
        assert [each.holder for each in warm.clusters()] == [waiting.holder]
        assert {each.holder for each in pool.ready(2)} > {waiting.holder}, "it has a set of its own kind get ready"
        assert re.match(r"ended 2 warm ranks.*\nended 2 warm ranks", other.run("%hvd clean --pool").text())
        assert warm.clusters() == []
        assert other.run("%hvd clean --pool").text() == "there are no warm ranks\n"


@pytest.mark.nightly
@pytest.mark.parametrize("what", ["rank", "mpiexec", "supervisor"])
def test_incomplete_set_is_not_used(pool: Pool, what: str) -> None:
    with pool.kernel() as first:
        first.run("%%hvdrun -np 2\n0", timeout=120)
        [waiting] = pool.ready()
    supervisor = supervisor_of(waiting)
    [mpiexec] = processes_below(supervisor) - {
        pid for child in processes_below(supervisor) for pid in processes_below(child)
    }
    victim = {"rank": max(processes_below(mpiexec)), "mpiexec": mpiexec, "supervisor": supervisor}[what]
    everything = {supervisor} | processes_below(supervisor)
    os.kill(victim, signal.SIGKILL)
    with pool.kernel(HVD_POOL="4") as second:  # minutes are no part of the likeness, and differ
        assert second.run("%%hvdrun -np 2\nsize", timeout=120).shown == ["[0-1] 2"]
        assert not {int(pid) for pid in pids(second.run("%hvd status").text())} & everything
    until(lambda: not living(everything), "what was left of it has ended")


@pytest.mark.nightly
def test_warm_ranks_exit_when_their_time_is_over(pool: Pool) -> None:
    with pool.kernel(HVD_POOL="0.2") as first:
        first.run("%%hvdrun -np 2\n0", timeout=120)
        until(warm.clusters, "a set gets ready", 60)
        [waiting] = warm.clusters()
        everything = {supervisor_of(waiting)} | processes_below(supervisor_of(waiting))
        until(lambda: not living(everything), "its minutes are over", 120)
        assert not waiting.folder.exists()


@pytest.mark.nightly
def test_warm_set_is_used_by_one_notebook(pool: Pool) -> None:
    with pool.kernel() as first:
        first.run("%%hvdrun -np 2\n0", timeout=120)
        [waiting] = pool.ready()
    with pool.kernel() as one, pool.kernel() as two:
        started = [each.start("%%hvdrun -np 2\nimport os\nos.getppid()") for each in (one, two)]
        for each, begun in zip((one, two), started, strict=True):
            each.finish(begun, timeout=120)
        got = [{int(pid) for pid in pids(each.run("%hvd status").text())} for each in (one, two)]
        assert not got[0] & got[1]
        [mpiexec] = [pid for pid in processes_below(supervisor_of(waiting)) if processes_below(pid)]
        assert processes_below(mpiexec) in got


@pytest.mark.nightly
def test_two_notebooks_filling_the_pool_leave_one_set(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_POOL", "5")
    with monkeypatch.context() as patch:
        patch.setattr(warm, "clusters", list)  # as if neither saw the other's
        for _ in range(2):
            warm_ranks.fill(ClusterSpec(2))
    until(lambda: sorted(each.poll() is None for each in warm_ranks._started) == [False, True], "one has given way")
    [waiting] = pool.ready()
    assert [folder for folder in pool.home.glob("hvd-*") if folder != waiting.folder] == []
    warm_ranks.end(waiting)


@pytest.mark.nightly
def test_warm_ranks_are_started_only_on_request(pool: Pool) -> None:
    with pool.kernel(HVD_POOL="0") as kernel:
        kernel.run("%%hvdrun -np 2\n0", timeout=120)
        assert "none, HVD_POOL=30 has some wait" in kernel.run("%hvd doctor").text()
        rooms = [name for name in pool.processes.values() if "warm" in name]
        assert rooms == []
        assert warm_ranks.adopt(ClusterSpec(2)) is None
