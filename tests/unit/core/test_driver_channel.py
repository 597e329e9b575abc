"""Messages between a rank and the driver of its job, over a real agent's socket: a process sends, a fake driver answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hvdtest.fake_driver import FakeDriver
from hvdtest.launch import clean_environment

from hvd_kernel.protocol.elastic import HostsUpdated, Leaving, Lost, Ready, Registered, Removed

RANK = """
import json, select, sys
from hvd_kernel.core.elastic_worker import driver
from hvd_kernel.core import agent_channel
from hvd_kernel.errors import HorovodInternalError
from hvd_kernel.protocol.elastic import Leaving, Ready, Registered
if sys.argv[1] == "connected":
    agent_channel.connect(lambda: None, lambda data: driver().receive(data))
def see(seconds):
    ready = select.select([driver().fileno()], [], [], seconds)[0]
    return [driver().is_over(), len(ready)]
updates = []
driver().on_hosts_updated(lambda update: updates.append([update.time, update.change]))
reasons = []
driver().on_pushed(reasons.append)
commands = {
    "reasons": lambda: reasons,
    "ask": lambda generation, seconds: str(driver().request_place(Ready(generation, step=4, port=5), seconds)),
    "see": see,
    "updates": lambda: updates,
    "leave": lambda: driver().send(Leaving()),
    "register": lambda: driver().send(Registered()),
}
for line in sys.stdin:
    command, *arguments = json.loads(line)
    try:
        said = commands[command](*arguments)
    except HorovodInternalError as error:
        said = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(said) + "\\n")
    sys.stdout.flush()
"""
GONE = "HorovodInternalError: the driver of this elastic job cannot be reached"


class Worker:
    """A process that runs commands on its channel."""

    def __init__(self, driver: FakeDriver, number: int, connected: str = "connected") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", RANK, connected],
            env=clean_environment(**driver.variables(number)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, command: str, *arguments: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def do(self, command: str, *arguments: float) -> Any:
        self.begin(command, *arguments)
        return self.answer()

    def close(self) -> None:
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    with FakeDriver() as driver:
        yield driver


@pytest.fixture
def worker(driver: FakeDriver) -> Iterator[Worker]:
    worker = Worker(driver, 7)
    yield worker
    worker.close()


def test_a_worker_gets_its_place_and_is_removed(driver: FakeDriver, worker: Worker) -> None:
    worker.begin("ask", 0, 60)
    assert driver.heard() == (7, Ready(0, step=4, port=5))
    driver.place(1, {7: 1, 3: 0}, {})
    assert "Place(generation=1, rank=1, size=2" in worker.answer()
    worker.begin("ask", 1, 60)
    assert driver.heard() == (7, Ready(1, step=4, port=5))
    driver.place(1, {7: 0}, {})  # late, and of a generation that it has had
    driver.tell(7, Removed("fewer"))
    assert worker.answer() == str(Removed("fewer"))


def test_newest_pushed_answer_is_used_without_a_request(driver: FakeDriver, worker: Worker) -> None:
    worker.do("register")
    assert driver.heard() == (7, Registered()), "the driver knows it: before, there is nobody whom it could tell"
    assert worker.do("see", 0) == [False, 0]
    driver.place(3, {7: 0}, {})
    assert worker.do("see", 60)[1] == 1
    driver.place(4, {7: 0}, {})
    driver.tell(7, HostsUpdated(1.5, 2))  # messages keep their order: this one implies the other two
    while not worker.do("updates"):
        pass
    assert worker.do("see", 60) == [True, 1]
    assert "Place(generation=4," in worker.do("ask", 2, 60)
    assert worker.do("see", 0) == [False, 0]
    worker.do("leave")
    assert driver.heard() == (7, Leaving()), "and it has not said that it is ready"


def test_worker_leaves_a_generation_that_lost_a_worker(driver: FakeDriver, worker: Worker) -> None:
    worker.begin("ask", 0, 60)
    driver.heard()
    driver.place(1, {7: 0, 3: 1}, {})
    assert "Place(generation=1, rank=0, size=2" in worker.answer()
    driver.tell(7, Lost(0, "of another generation"))
    driver.tell(7, Lost(1, "exit status 3"))
    assert worker.do("see", 60) == [True, 1]
    while not (reasons := worker.do("reasons")):  # set by another thread, beside the descriptor
        pass
    assert reasons == ["a rank has failed: exit status 3"]
    worker.begin("ask", 1, 60)
    assert driver.heard() == (7, Ready(1, step=4, port=5))
    driver.tell(7, Lost(1, "again"))
    driver.place(2, {7: 0}, {7: 0})
    assert "Place(generation=2, rank=0, size=1" in worker.answer()
    assert worker.do("see", 0) == [False, 0]
    assert worker.do("reasons") == ["a rank has failed: exit status 3"]


def test_change_of_hosts_is_reported(driver: FakeDriver, worker: Worker) -> None:
    worker.do("register")
    assert driver.heard() == (7, Registered())
    driver.tell(7, HostsUpdated(1.25, 3))
    driver.place(1, {7: 0}, {})
    worker.do("ask", 0, 60)
    assert worker.do("updates") == [[1.25, 3]]


def test_waits_for_the_driver_time_out(driver: FakeDriver, worker: Worker) -> None:
    late = "HvdTimeout: the driver of this elastic job has given this rank no place within 0.05 s."
    assert worker.do("ask", 0, 0.05).startswith(late)


def test_closed_driver_is_an_error() -> None:
    with FakeDriver() as driver:
        worker = Worker(driver, 0)
        worker.begin("ask", 0, 60)
        driver.heard()
    assert worker.answer().startswith(GONE)
    worker.close()


def test_worker_without_an_agent_is_refused_at_once(driver: FakeDriver) -> None:
    worker = Worker(driver, 0, "alone")
    assert worker.do("ask", 0, 60).startswith(GONE)
    worker.close()
