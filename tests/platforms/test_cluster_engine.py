"""Ranks started by a cluster's engine: the behaviour shared by Spark and Ray, with an engine of plain processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hvdtest import fake_mps
from hvdtest.hvdrun import gone, lines_of, processes_with
from hvdtest.pretend_engine import Processes

from hvd_kernel.errors import ClusterError, RankDied, RankFailed
from hvd_kernel.launch.elastic.options import ElasticOptions
from hvd_kernel.launch.job_run import Job
from hvd_kernel.launch.launchers.cluster_engine import Invitation
from hvd_kernel.launch.run.call import pack_call
from hvd_kernel.launch.run.execution import in_processes
from hvd_kernel.processes.lifetime import environment_of, kill, stat_of
from hvd_kernel.processes.mps.daemon import members
from hvd_kernel.protocol.messages import MetricsSample, RankLeft

pytestmark = pytest.mark.mp
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks do not see this file

EVERYWHERE = pytest.mark.parametrize("addresses", [[], pytest.param(["127.0.0.1"], marks=pytest.mark.nightly)])


def called(function: object, engine: Processes, *args: object, seconds: float = 60.0, **env: str) -> list[Any]:
    """Return the results of a function on the ranks of an engine."""
    job = Job(command=[""], np=len(engine._hosts), env=env, engine=engine, start_timeout_s=seconds)
    return in_processes(pack_call(function, args, {}, ()), job, stdout=OUT[-1], stderr=OUT[-1])


OUT: list[StringIO] = []


@pytest.fixture(autouse=True)
def said(mark: str) -> StringIO:
    OUT.append(StringIO())
    return OUT[-1]


def place() -> tuple[int, int, int, int, str]:
    from hvd_kernel.core import ops, session

    session.init()
    print("here is", session.rank())
    total = ops.allreduce(np.array([session.rank() + 1.0]), "x", ops.Sum)
    assert total.item() == 6.0
    return session.rank(), session.local_rank(), session.local_size(), session.cross_size(), os.environ["INDEX"]


@EVERYWHERE
def test_ranks_are_numbered_by_host_in_order_of_arrival(addresses: list[str], said: StringIO) -> None:
    found = called(place, Processes(["b", "a", "b"], addresses))
    assert found == [(0, 0, 2, 2, "0"), (1, 1, 2, 1, "2"), (2, 0, 1, 2, "1")]
    for rank in range(3):
        assert lines_of(said.getvalue(), rank) == [f"here is {rank}"]


def environment() -> dict[str, object]:
    agent = environment_of(os.getppid())
    names = ("DRIVERS_OWN", "ENGINE_TOKEN", "GIVEN", "INDEX")
    return {name: os.environ.get(name) for name in names} | {"agent": [n for n in agent if "SECRET" in n]}


def daemon() -> tuple[str | None, bool]:
    from hvd_kernel.processes.mps import decision

    pipes = os.environ.get(decision.PIPES)
    return pipes, pipes is not None and decision.answers(Path(pipes))


@pytest.mark.nightly
@pytest.mark.parametrize(("given", "is_there"), [({}, True), ({"HVD_MPS": "0"}, False)], ids=["usual", "none"])
def test_ranks_sharing_a_device_get_one_mps_daemon(tmp_path: Path, given: dict[str, str], is_there: bool) -> None:
    device = {"PATH": fake_mps.installed(tmp_path / "bin"), "CUDA_VISIBLE_DEVICES": "5"}
    found = called(daemon, Processes(["a", "a", "a"]), **device, **given)
    assert len({*found}) == 1
    [(pipes, answers), *_] = found
    assert answers is is_there
    assert (pipes is not None) is is_there
    if pipes is not None:
        assert members(Path(pipes)) == []
        assert not Path(pipes).parent.exists()


@pytest.mark.nightly
def test_a_rank_has_the_engines_environment_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRIVERS_OWN", "1")
    found = called(environment, Processes(["a"]), GIVEN="2")
    assert found == [{"DRIVERS_OWN": None, "ENGINE_TOKEN": None, "GIVEN": "2", "INDEX": "0", "agent": []}]


def counts_until(seen: str) -> None:
    from hvd_kernel.core import metrics, ops, session

    session.init()
    metrics.step(samples=8)
    metrics.log(loss=session.rank() + 0.5)
    while not ops.allreduce(np.array([float(Path(seen).exists())]), "seen", ops.Sum).item():
        metrics.step(samples=8)


def test_samples_of_every_rank_arrive_until_its_end(tmp_path: Path) -> None:
    seen, running, ended = tmp_path / "seen", set[int](), dict[int, MetricsSample]()

    def take(sample: MetricsSample) -> None:
        if sample.state == "idle":
            ended[sample.rank] = sample
        elif sample.logged:
            running.add(sample.rank)
        if running == {0, 1}:
            seen.touch()

    job = Job(command=[""], np=2, engine=Processes(["a", "b"]), start_timeout_s=60.0, on_sample=take)
    in_processes(pack_call(counts_until, [str(seen)], {}, ()), job, stdout=OUT[-1], stderr=OUT[-1])
    assert {rank: last.logged for rank, last in ended.items()} == {0: {"loss": 0.5}, 1: {"loss": 1.5}}
    assert ended[0].step == ended[1].step >= 1
    assert [last.samples for last in ended.values()] == [8 * last.step for last in ended.values()]


class Bad(Exception):
    pass


def fails(failing: int) -> None:
    from hvd_kernel.core import ops, session

    session.init()
    if session.rank() == failing:
        raise Bad("shard", failing)
    ops.barrier()


def test_what_a_rank_raises_is_the_cause_and_the_others_end() -> None:
    with pytest.raises(RankFailed, match=r"(?s)rank 1 of 2 raised Bad: .*raise Bad") as raised:
        called(fails, Processes(["a", "a"]), 1)
    cause = raised.value.__cause__
    assert (type(cause).__name__, cause.args) == ("Bad", ("shard", 1))
    assert raised.value.rank == 1


def vanishes() -> None:
    if os.environ["HOROVOD_RANK"] == "1":
        os._exit(7)
    time.sleep(100)


@pytest.mark.nightly
def test_rank_that_exits_is_named_with_its_status() -> None:
    with pytest.raises(RankDied, match=r"rank 1 of 2 ended with exit status 7 before its function returned"):
        called(vanishes, Processes(["a", "a"]))


def ends_its_process() -> None:
    """Kill the engine's process of rank 1: the agent's parent."""
    if os.environ["HOROVOD_RANK"] == "1":
        kill(int(stat_of(os.getppid())[1]), signal.SIGKILL)
    time.sleep(100)


@pytest.mark.nightly
def test_rank_exits_with_its_lost_engine_process() -> None:
    with pytest.raises(RankDied, match=r"rank 1 of 2 was lost with the process that held it before"):
        called(ends_its_process, Processes(["a", "a"]))


@pytest.mark.nightly
def test_engine_that_ends_before_the_ranks_start_reports_why() -> None:
    with pytest.raises(
        ClusterError, match=r"^Pretend has ended when \d of 2 ranks were up: no room, make some$"
    ) as raised:
        called(place, Processes(["a", "a"], brings=1))
    assert isinstance(raised.value.__cause__, ValueError)


class Never(Processes):
    """An engine that starts a rank too few, and keeps running."""

    def work(self, invitation: Invitation) -> None:
        self._hosts = self._hosts[:-1]
        super().work(invitation)


@pytest.mark.nightly
def test_engine_without_resources_times_out() -> None:
    with pytest.raises(ClusterError) as raised:
        called(place, Never(["a", "a"]), seconds=4.0)
    assert str(raised.value) == (
        "Timed out waiting for Pretend to start the ranks: 1 of 2 are up after 4 s. It has 1 slot. Give Pretend more "
        "resources or lower the number of ranks; where resources are allocated on demand, raise start_timeout."
    )


class Retrying(Processes):
    """An engine that restarts a process that was killed, as Spark does with tasks."""

    def work(self, invitation: Invitation) -> None:
        with ThreadPoolExecutor(len(self._hosts)) as threads:
            [*threads.map(partial(self._try, invitation), range(len(self._hosts)))]

    def _try(self, invitation: Invitation, index: int) -> None:
        while self.start(invitation, index).wait() < 0:
            pass


def trains(folder: str, *, fails: bool) -> list[int]:
    """Five steps; at the third, rank 1 of the first generation ends, or the engine's process that holds it."""
    import hvd_kernel.numpy as hvd

    hvd.init()
    state = hvd.elastic.ObjectState(step=0, total=0)

    @hvd.elastic.run
    def train(state: hvd.elastic.ObjectState) -> None:
        while state.step < 5:
            first = Path(folder, "first")
            if state.step == 2 and hvd.rank() == 1 and not first.exists():
                first.touch()
                os._exit(3) if fails else kill(int(stat_of(os.getppid())[1]), signal.SIGKILL)
                time.sleep(100)
            state.total += int(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
            state.step += 1
            state.commit()

    train(state)
    return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), state.total]


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_an_elastic_job_continues_with_a_new_engine_process(fails: bool, tmp_path: Path, said: StringIO) -> None:
    job = Job(command=[""], np=2, engine=Retrying(["a", "a"]), start_timeout_s=60.0)
    call = pack_call(partial(trains, fails=fails), (str(tmp_path),), {}, ())
    options = ElasticOptions(2, 2, 2, by_engine=True, timeout_s=60.0)
    found = in_processes(call, job, stdout=said, stderr=said, elastic=options)
    assert found == [[0, 2, 0, 2, 10], [1, 2, 1, 2, 10]], said.getvalue()


def shrinks(folder: str) -> int:
    """Step until rank 1 is gone; it exits after both ranks were seen, with the engine's process that holds it."""
    import hvd_kernel.numpy as hvd

    hvd.init()

    @hvd.elastic.run
    def train(state: hvd.elastic.ObjectState) -> None:
        while not hvd.allreduce(np.array([float(Path(folder, "left").exists())]), op=hvd.Sum).item():
            hvd.log(loss=hvd.rank() + 0.5)
            if hvd.rank() == 1 and Path(folder, "seen").exists():
                kill(int(stat_of(os.getppid())[1]), signal.SIGKILL)
                time.sleep(100)
            state.commit()

    train(hvd.elastic.ObjectState(step=0))
    return hvd.size()


@pytest.mark.nightly
def test_samples_of_a_rank_end_with_its_last_generation(tmp_path: Path, said: StringIO) -> None:
    logged, left = dict[int, float](), []

    def take(event: MetricsSample | RankLeft) -> None:
        if isinstance(event, RankLeft):
            left.append(event.rank)
            (tmp_path / "left").touch()
        else:
            logged.update((event.rank, value) for value in event.logged.values())
        if len(logged) == 2:
            (tmp_path / "seen").touch()

    job = Job(command=[""], np=2, engine=Processes(["a", "b"]), start_timeout_s=60.0, on_sample=take)
    options = ElasticOptions(2, 1, 2, by_engine=True, timeout_s=60.0)
    call = pack_call(shrinks, (str(tmp_path),), {}, ())
    assert in_processes(call, job, stdout=said, stderr=said, elastic=options) == [1], said.getvalue()
    assert (logged, left) == ({0: 0.5, 1: 1.5}, [1])


def which() -> str:
    return os.environ["INDEX"]


@pytest.mark.nightly
def test_an_elastic_job_without_init_returns_all_values(said: StringIO) -> None:
    job = Job(command=[""], np=3, engine=Processes(["a", "b", "a"]), start_timeout_s=60.0)
    options = ElasticOptions(3, 3, 3, by_engine=True, timeout_s=60.0)
    found = in_processes(pack_call(which, (), {}, ()), job, stdout=said, stderr=said, elastic=options)
    assert sorted(map(str, found)) == ["0", "1", "2"], said.getvalue()


def stops() -> None:
    raise Bad("before init", 1)


@pytest.mark.nightly
def test_elastic_job_that_fails_before_init_reports_it(said: StringIO) -> None:
    job = Job(command=[""], np=2, engine=Processes(["a", "a"]), start_timeout_s=60.0)
    options = ElasticOptions(2, 2, 2, by_engine=True, timeout_s=60.0)
    with pytest.raises(RankFailed, match=r"^rank [01] of 2 raised Bad: \('before init', 1\)") as raised:
        in_processes(pack_call(stops, (), {}, ()), job, stdout=said, stderr=said, elastic=options)
    assert type(raised.value.__cause__).__name__ == "Bad"


@pytest.mark.nightly
def test_an_elastic_job_ends_when_its_engine_does(said: StringIO) -> None:
    job = Job(command=[""], np=2, engine=Processes(["a", "a"], brings=1), start_timeout_s=60.0)
    options = ElasticOptions(2, 2, 2, by_engine=True, timeout_s=60.0)
    with pytest.raises(ClusterError, match=r"^Pretend has ended: no room, make some$"):
        in_processes(pack_call(place, (), {}, ()), job, stdout=said, stderr=said, elastic=options)


@pytest.mark.nightly
def test_an_elastic_job_without_resources_times_out(said: StringIO) -> None:
    job = Job(command=[""], np=2, engine=Processes(["a"]), start_timeout_s=4.0)
    options = ElasticOptions(2, 2, 2, by_engine=True, timeout_s=60.0)
    with pytest.raises(
        ClusterError, match=r"^Timed out waiting for Pretend to start the ranks: 1 of 2 are up after 4 s\."
    ):
        in_processes(pack_call(place, (), {}, ()), job, stdout=said, stderr=said, elastic=options)


def forks(marker: str) -> None:
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(marker).with_suffix(f".{os.environ['HOROVOD_RANK']}").touch()
    time.sleep(1000)


DRIVER = """
import sys
sys.path.insert(0, {folder!r})
import test_cluster_engine as tests
tests.OUT.append(None)
tests.called(tests.forks, tests.Processes(["a", "a"]), sys.argv[1])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_no_process_outlives_the_driver(number: signal.Signals, mark: str, tmp_path: Path) -> None:
    marker = tmp_path / "rank"
    script = DRIVER.format(folder=str(Path(__file__).parent))
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    driver = subprocess.Popen(
        [sys.executable, "-P", "-c", script, str(marker)],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2:
        assert driver.poll() is None
        assert time.monotonic() < deadline, "the ranks have not begun"
        time.sleep(0.05)
    driver.send_signal(number)
    driver.wait()
    assert gone(mark), processes_with(mark)
