"""``elastic.run`` on real ranks placed by a fake driver: deaths, planned ends, new ranks; the source of the sync."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hvdtest.exact import raises
from hvdtest.fake_driver import FakeDriver
from hvdtest.launch import RankPool

from hvd_kernel.protocol.elastic import Finished, HostsUpdated, Leaving, Lost, Place, Ready, Registered, Removed

pytestmark = pytest.mark.mp

STEPS = 30


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    with FakeDriver() as driver:
        yield driver


def play(driver: FakeDriver, pool: RankPool, script: Callable[[], Any], check: Any, *args: Any, **gone: Any) -> Any:
    """Run the check on all workers while the driver plays its part; return the driver's result and theirs."""
    with pool, ThreadPoolExecutor(1) as executor:
        played = executor.submit(script)
        found = pool.run(check, *args, **gone)
        return played.result(), found


def workers(driver: FakeDriver, count: int, **env: str) -> RankPool:
    return RankPool(count, "shm", lambda worker, *_: driver.variables(worker) | {"WORKER": str(worker)}, **env)


class Training:
    """A network with its optimizer; the test defines each step."""

    def __init__(self) -> None:
        import torch

        import hvd_kernel.torch as hvd

        self.worker = int(os.environ["WORKER"])
        hvd.init()
        torch.manual_seed(self.worker)
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 300), torch.nn.Linear(300, 2))
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=self.model.named_parameters())
        self.state = hvd.elastic.TorchState(self.model, self.optimizer, done=0, sizes=[])
        self.tried = 0  # steps of this process, those that were undone too
        self.resets: list[tuple[int, int]] = []
        self.state.register_reset_callbacks([lambda: self.resets.append((hvd.size(), self.state.done))])

    def run(self, act: Callable[[Training], None]) -> dict[str, Any]:
        import torch

        import hvd_kernel.torch as hvd

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.done < STEPS:
                act(self)
                self.optimizer.zero_grad()
                inputs = torch.full((3, 4), float(state.done + hvd.rank()))
                self.model(inputs).square().sum().backward()
                self.optimizer.step()
                state.done += 1
                state.sizes.append(hvd.size())
                self.tried += 1
                state.commit()

        train(self.state)
        tensors = [
            *self.model.parameters(),
            *(t for s in self.optimizer.state_dict()["state"].values() for t in s.values()),
        ]
        digest = hash(tuple(float(tensor.double().sum()) for tensor in tensors))
        hvd.shutdown()
        return {"sizes": self.state.sizes, "digest": digest, "tried": self.tried, "resets": self.resets}


def one_dies() -> Any:
    """Worker 1 dies in step 10; worker 3 replaces it, and may not communicate before elastic.run."""
    import torch

    import hvd_kernel.torch as hvd

    training = Training()
    if training.worker == 3:
        sentence = "hvd.allreduce before elastic.run, on rank 2, which is new in a job that runs"
        raises(ValueError, sentence, hvd.allreduce, torch.ones(1))
        raises(ValueError, "hvd.broadcast before elastic.run", hvd.broadcast_parameters, training.model.state_dict(), 0)

    def act(training: Training) -> None:
        if (training.worker, training.state.done) == (1, 10):
            os._exit(3)

    return training.run(act)


@pytest.mark.nightly  # tests/elastic has the same by a real hvdrun in the default tier
def test_dead_rank_is_replaced_and_commits_are_kept(driver: FakeDriver) -> None:
    def script() -> dict[int, Ready]:
        first = {0: 0, 1: 1, 2: 2}
        driver.until_ready(*first)
        driver.place(1, first, {})
        said = driver.until_ready(0, 2, 3)
        driver.place(2, {2: 0, 0: 1, 3: 2}, {0: 0, 2: 2}, root=1)
        return said

    said, found = play(driver, workers(driver, 4), script, one_dies, gone={1: 3})
    assert {worker: (one.generation, one.failed, one.step) for worker, one in said.items()} == {
        0: (1, True, 10),
        2: (1, True, 10),
        3: (0, False, 0),
    }
    for worker in (0, 2):
        assert said[worker].reason.startswith("RankDied: "), said[worker].reason
    left = [found[worker] for worker in (0, 2, 3)]
    assert {str(one["sizes"]) for one in left} == {str([3] * STEPS)}
    assert len({one["digest"] for one in left}) == 1
    assert [one["tried"] for one in left] == [STEPS, STEPS, STEPS - 10]
    assert [one["resets"] for one in left] == [[[3, 10]], [[3, 10]], []], "called when the size is new, before the sync"


def hosts_change(folder: str) -> Any:
    """In step 10 all wait for the notice of changed hosts; then they continue with their state."""
    from hvd_kernel.elastic import notification_manager

    training = Training()
    heard: list[float] = []

    class Hears:
        def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
            heard.append(timestamp)

    notification_manager.register_listener(Hears())

    def act(training: Training) -> None:
        if training.state.done == 10 and training.tried:
            Path(folder, str(training.worker)).touch()
            while not heard:
                time.sleep(0.001)

    try:
        return training.run(act)
    except SystemExit as left:
        return {"left": left.code, "tried": training.tried}


def until(files: list[Path]) -> None:
    while not all(file.exists() for file in files):
        time.sleep(0.001)


def test_change_of_hosts_costs_no_step_and_removed_ranks_exit(driver: FakeDriver, tmp_path: Path) -> None:
    def script() -> dict[int, Ready]:
        first = {0: 0, 1: 1, 2: 2}
        driver.until_ready(*first)
        driver.place(1, first, {})
        until([tmp_path / str(worker) for worker in first])
        for worker in first:
            driver.tell(worker, HostsUpdated(time.time(), 3))
        said = driver.until_ready(0, 1, 2, 3)
        driver.tell(1, Removed("its host goes"))
        stay = {0: 0, 2: 1, 3: 2}
        driver.place(2, stay, {0: 0, 2: 2})
        driver.tell(2, HostsUpdated(time.time(), 2))  # behind its place: news, though it has yet to get there
        assert not any(one.failed for one in driver.until_ready(*stay).values())
        driver.place(3, stay, stay)
        return said

    said, found = play(driver, workers(driver, 4), script, hosts_change, str(tmp_path))
    assert {(one.generation, one.failed, one.step) for worker, one in said.items() if worker != 3} == {(1, False, 11)}
    assert found[1] == {"left": 0, "tried": 11}
    left = [found[worker] for worker in (0, 2, 3)]
    assert [one["tried"] for one in left] == [STEPS, STEPS, STEPS - 11], "nothing is done again"
    assert len({one["digest"] for one in left}) == 1


@pytest.mark.nightly
def test_new_ranks_get_the_values_of_the_others(driver: FakeDriver, tmp_path: Path) -> None:
    def script() -> None:
        first, all_of_them = {0: 0, 1: 1}, {0: 0, 1: 1, 2: 2, 3: 3}
        driver.until_ready(*first)
        driver.place(1, first, {})
        until([tmp_path / str(worker) for worker in first])
        driver.tell(1, HostsUpdated(time.time(), 2))
        driver.tell(0, HostsUpdated(time.time(), 2))
        driver.until_ready(*all_of_them)
        driver.place(2, all_of_them, first)

    _, found = play(driver, workers(driver, 4), script, hosts_change, str(tmp_path))
    assert [one["tried"] for one in found] == [STEPS, STEPS, STEPS - 11, STEPS - 11]
    assert [one["sizes"] for one in found] == [[2] * 11 + [4] * (STEPS - 11)] * 4
    assert len({one["digest"] for one in found}) == 1


def is_told_to_end(folder: str) -> Any:
    training = Training()

    def act(training: Training) -> None:
        if training.state.done == 10:
            Path(folder, str(training.worker)).write_text(str(os.getpid()))
            while not Path(folder, "go on").exists():
                time.sleep(0.001)

    try:
        return training.run(act)
    except SystemExit as left:
        return {"left": left.code, "tried": training.tried}


@pytest.mark.nightly
@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGUSR1])
def test_a_notice_leads_to_a_planned_end(driver: FakeDriver, tmp_path: Path, notice: int) -> None:
    """Only rank 1 has the notice: it informs the others."""

    def script() -> list[Any]:
        first = {0: 0, 1: 1, 2: 2}
        driver.until_ready(*first)
        driver.place(1, first, {})
        until([tmp_path / str(worker) for worker in first])
        os.kill(int((tmp_path / "1").read_text()), notice)
        said: list[Any] = []
        while (1, Leaving()) not in said:
            said.append(driver.heard())
        (tmp_path / "go on").touch()
        driver.until_ready(0, 1, 2)
        driver.tell(1, Removed("as it wished"))
        driver.place(2, {0: 0, 2: 1}, {0: 0, 2: 2})
        return said

    said, found = play(driver, workers(driver, 3), script, is_told_to_end, str(tmp_path))
    assert said_by(said) == {0, 1, 2}, "all have entered elastic.run"
    assert found[1] == {"left": 0, "tried": 11}
    assert [found[worker]["sizes"] for worker in (0, 2)] == [[3] * 11 + [2] * (STEPS - 11)] * 2
    assert found[0]["digest"] == found[2]["digest"]


def said_by(said: list[Any]) -> set[int]:
    return {worker for worker, message in said if isinstance(message, Registered)}


@pytest.mark.nightly
def test_all_ranks_report_completion(driver: FakeDriver) -> None:
    def script() -> list[Any]:
        driver.until_ready(0, 1)
        driver.place(1, {0: 0, 1: 1}, {})
        return [driver.heard() for _ in range(4)]

    said, found = play(driver, workers(driver, 2), script, finishes)
    assert {(worker, type(message)) for worker, message in said} == {
        (worker, kind) for worker in (0, 1) for kind in (Registered, Finished)
    }
    assert len({one["digest"] for one in found}) == 1


def finishes() -> Any:
    return Training().run(lambda _: None)


def meets_whom_it_can() -> list[int]:
    import hvd_kernel.torch as hvd

    hvd.init()
    met = [hvd.rank(), hvd.size()]
    hvd.barrier()
    hvd.shutdown()
    return met


@pytest.mark.nightly
def test_new_place_ends_the_wait_of_ranks(driver: FakeDriver) -> None:
    def script() -> bool:
        driver.until_ready(0, 1, 2)
        driver.place(1, {0: 0, 1: 1, 2: 2}, {}, only=(0, 1))  # rank 2 is not notified
        driver.place(2, {1: 0, 0: 1}, {0: 0, 1: 1})
        driver.tell(2, Place(3, 0, 1, 0, 1, 0, 1, "localhost", "127.0.0.1", 1, ""))
        return not driver.ready

    asked, met = play(driver, workers(driver, 3, HVD_START_TIMEOUT="600"), script, meets_whom_it_can)
    assert asked, "nobody has said again that it is ready"
    assert met == [[1, 2], [0, 2], [0, 1]]


@pytest.mark.nightly
def test_reported_failure_ends_the_wait_of_ranks(driver: FakeDriver) -> None:
    def script() -> set[int]:
        driver.until_ready(0, 1, 2)
        driver.place(1, {0: 0, 1: 1, 2: 2}, {}, only=(0, 1))
        for worker in (0, 1):
            driver.tell(worker, Lost(1, "exit status 3"))
        said = driver.until_ready(0, 1)
        driver.place(2, {1: 0, 0: 1}, {0: 0, 1: 1})
        driver.tell(2, Place(3, 0, 1, 0, 1, 0, 1, "localhost", "127.0.0.1", 1, ""))
        return {one.generation for one in said.values()}

    left, met = play(driver, workers(driver, 3, HVD_START_TIMEOUT="600"), script, meets_whom_it_can)
    assert left == {1}
    assert met == [[1, 2], [0, 2], [0, 1]]


@pytest.mark.nightly
def test_timed_out_rank_reports_it_and_gets_another_place(driver: FakeDriver) -> None:
    def script() -> dict[int, Ready]:
        driver.until_ready(0, 1, 2)
        driver.place(1, {0: 0, 1: 1, 2: 2}, {}, only=(0, 1))
        said = driver.until_ready(0, 1)
        driver.place(2, {0: 0, 1: 1, 2: 2}, {0: 0, 1: 1})
        return said

    said, met = play(driver, workers(driver, 3, HVD_START_TIMEOUT="2"), script, meets_whom_it_can)
    assert {(one.generation, one.failed) for one in said.values()} == {(1, True)}
    assert all("rank 2 did not come to rank 0" in one.reason for one in said.values()), said
    assert met == [[0, 3], [1, 3], [2, 3]]
