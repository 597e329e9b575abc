"""A notebook's ranks on a cluster's engine: the behaviour shared by Ray and Spark, with an engine of plain processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hvdtest import fake_mps
from hvdtest.cluster import drain, execute, until, wait_until_all_speak
from hvdtest.pretend_engine import Processes

from hvd_kernel.cluster import Session
from hvd_kernel.errors import ClusterError
from hvd_kernel.launch.launchers.cluster_engine import Invitation, NotebookEngine
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.processes.lifetime import environment_of, kill, stat_of
from hvd_kernel.processes.mps.daemon import members

pytestmark = pytest.mark.mp


@contextmanager
def ranks_on(engine: Processes, env: dict[str, str] | None = None, **how: float) -> Iterator[Session]:
    """Ranks that this engine has started; afterwards none of its processes is left."""
    spec = ClusterSpec(len(engine._hosts), on="ray", **how)
    session = Session.start(spec, engine=NotebookEngine(engine, {"GIVEN": "2"} | (env or {})))
    try:
        yield session
    finally:
        session.stop()
    assert [process.poll() for process in engine.processes] == [0] * len(engine.processes)


def test_a_dead_rank_is_replaced_and_variables_stay() -> None:
    with ranks_on(Processes(["b", "a"])) as session:
        made = "import os\nx = rank * 10\n(hvd.rank(), size, local_rank, os.environ['INDEX'], os.environ['GIVEN'])"
        assert execute(session, made).run.values() == {0: (0, 2, 0, "0", "2"), 1: (1, 2, 0, "1", "2")}
        assert execute(session, "hvd.allgather_object(x)").run.values() == {0: [0, 10], 1: [0, 10]}
        died = execute(session, "os._exit(3) if rank == 1 else hvd.barrier()").failures[1]
        [_, who] = session.status()
        assert died.evalue.startswith(f"rank 1 (process {who.pid} on {who.host}) died: it exited with os._exit(3)")
        assert session.respawn().ranks == (1,)
        left = "hvd.allgather_object(globals().get('x'))"
        assert execute(session, left).run.values() == {0: [0, None], 1: [0, None]}


@pytest.mark.nightly
def test_ranks_on_other_hosts_reach_the_notebook_without_a_key() -> None:
    with ranks_on(Processes(["a", "b", "a"], ["127.0.0.1"])) as session:
        place = "import os\n(rank, local_rank, os.environ['INDEX'], os.getpid(), os.getppid())"
        found = execute(session, place).run.values()
        assert [each[:3] for each in found.values()] == [(0, 0, "0"), (1, 1, "2"), (2, 0, "1")]
        key = session.executor.wire.session.key.decode()
        for _, _, _, *processes in found.values():
            for pid in processes:
                assert key not in environment_of(pid).values()
                assert key not in Path(f"/proc/{pid}/cmdline").read_text()
        session.push({"y": [1, 2]})
        assert session.pull(["y"]) == {rank: {"y": [1, 2]} for rank in range(3)}


@pytest.mark.nightly
def test_one_mps_daemon_survives_a_respawn(tmp_path: Path) -> None:
    device = {"PATH": fake_mps.installed(tmp_path / "bin"), "CUDA_VISIBLE_DEVICES": "5"}
    seen = "import os\nos.environ.get('CUDA_MPS_PIPE_DIRECTORY')"
    with ranks_on(Processes(["a", "a"]), device) as session:
        found = execute(session, seen).run.values()
        pipes = Path(found[0])
        assert found == dict.fromkeys((0, 1), str(pipes))
        [daemon] = members(pipes)
        assert execute(session, "os._exit(3) if rank == 0 else hvd.barrier()").failures
        assert session.respawn().ranks == (0,)
        assert execute(session, seen).run.values() == found
        assert members(pipes) == [daemon], "it is the agent's, which outlives its rank"
    until(lambda: not pipes.parent.exists(), "daemon and folder are gone")
    assert members(pipes) == []


@pytest.mark.nightly
def test_an_interrupt_ends_the_cell_and_keeps_the_variables() -> None:
    with ranks_on(Processes(["a", "a"])) as session:
        run = session.run(
            "kept = rank\nprint('here', flush=True)\nif rank == 0:\n    hvd.barrier()\nimport time\ntime.sleep(1000)"
        )
        seen = wait_until_all_speak(run)
        session.interrupt()
        assert {failure.ename for failure in drain(run).run.failures} == {"KeyboardInterrupt"}, seen
        assert execute(session, "hvd.allgather_object(kept)").run.values() == {0: [0, 1], 1: [0, 1]}


class Again(Processes):
    """One that starts a process again that was killed, as Ray's engine does with actors."""

    def work(self, invitation: Invitation) -> None:
        for index in range(len(self._hosts)):
            self.start(invitation, index)
        for index, process in enumerate([*self.processes]):
            if process.wait() < 0:
                self.processes.remove(process)
                self.start(invitation, index).wait()


@pytest.mark.nightly
def test_a_lost_process_ends_its_rank_and_is_replaced() -> None:
    with ranks_on(Again(["a", "a"])) as session:
        found = execute(session, "import os\nos.getppid()").run.values()
        kill(int(stat_of(found[0])[1]), 9)
        run = execute(session, "import time\ntime.sleep(1000) if rank == 0 else None")
        assert "died: it was lost with the process of Pretend that held it" in run.failures[0].evalue
        assert session.respawn().ranks == (0,)
        assert execute(session, "hvd.allgather_object(rank)").run.values() == {0: [0, 1], 1: [0, 1]}


@pytest.mark.nightly
def test_a_living_rank_is_replaced_by_force_and_the_size_stays() -> None:
    with ranks_on(Processes(["a", "a"])) as session:
        execute(session, "x = rank")
        assert session.respawn([0], force=True).ranks == (0,)
        assert execute(session, "globals().get('x')").run.values() == {0: None, 1: 1}
        with pytest.raises(ClusterError, match=r"^Pretend was asked for all ranks at once, and none can be added"):
            session.resize(3)
        with pytest.raises(ClusterError, match=r"Pretend ends them with this kernel"):
            session.keep("name", "place")


@pytest.mark.nightly
def test_engine_that_ends_before_the_ranks_start_reports_why() -> None:
    with (
        pytest.raises(ClusterError, match=r"^Pretend has ended: no room, make some \(when \d of 2 ranks were up\)"),
        ranks_on(Processes(["a", "a"], brings=1)),
    ):
        pass


class Never(Processes):
    """An engine that starts a rank too few, and keeps running."""

    def work(self, invitation: Invitation) -> None:
        self.start(invitation, 0).wait()


@pytest.mark.nightly
def test_engine_without_resources_times_out() -> None:
    engine = Never(["a", "a"])
    with (
        pytest.raises(ClusterError, match=r"did not come up within 6 s .*It has 1 slot"),
        ranks_on(engine, start_timeout_s=6.0),
    ):
        pass
    assert [process.wait(30) for process in engine.processes] == [0] or engine.processes[0].returncode == -9


@pytest.mark.nightly
def test_address_of_another_host_is_refused() -> None:
    with (
        pytest.raises(ClusterError, match=r"^Pretend reaches this notebook at 192\.0\.2\.1, which is no address of"),
        ranks_on(Processes(["a"], ["192.0.2.1"])),
    ):
        pass
