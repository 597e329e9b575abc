"""Ctrl-C, a driver, a rank, a node that is lost at once: what the caller gets, and that no process is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hvdtest.ray_driver import outcomes
from hvdtest.ray_ends import ENDS

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

SCRIPT = (
    ENDS
    + '''
made, others = cluster(node(1), node(1), node(1))
address = made.address
ray.init(address, log_to_driver=False)
settings = RayExecutor.create_settings(timeout_s=100)

def interrupted():
    executor, here = RayExecutor(settings, num_workers=2), folder("interrupted")
    executor.start()
    processes = meanwhile(here, 2, interrupt)
    said = [came_of(executor.run, stays, [here]), came_of(executor.run, place)]
    executor.shutdown()
    return [*said, left(processes)]

def interrupted_elastic():
    executor, here = RayExecutor(RayExecutor.create_settings(), min_workers=3, max_workers=3), folder("elastic")
    executor.start()
    processes = meanwhile(here, 3, interrupt)
    return [came_of(executor.run, stays, [here]), left(processes)]

def rank_killed():
    executor, here = RayExecutor(settings, num_workers=2), folder("rank")
    executor.start()
    processes = meanwhile(here, 2, lambda processes: os.kill(processes[1][0], signal.SIGKILL))
    said = came_of(executor.run, stays, [here])
    executor.shutdown()
    os.kill(processes[1][1], signal.SIGKILL)  # what a rank has put into a session of its own is nobody's when it is killed
    return [said, left(processes)]

def driver_killed():
    here = folder("driver")
    script = DRIVER.replace("ADDRESS", address)
    driver = subprocess.Popen([sys.executable, "-P", "-c", script, here], stdout=subprocess.DEVNULL)
    processes = begun(here, 2)
    driver.kill()
    driver.wait()
    return left(processes)

def node_lost():
    executor, here = RayExecutor(settings, num_hosts=3), folder("node")
    executor.start()
    lost = executor.run(lambda: os.environ["HVD_HOST"]).index(others[1].node_id)
    processes = meanwhile(here, 3, lambda _: others[1].all_processes["raylet"][0].process.kill())
    *said, rank = came_of(executor.run, stays, [here])
    executor.shutdown()
    return [said, rank == lost, left(processes)]

DRIVER = """
import ray, sys
from hvd_kernel.ray import RayExecutor
ray.init("ADDRESS", log_to_driver=False)
executor = RayExecutor(RayExecutor.create_settings(timeout_s=100), num_workers=2)
executor.start()
""" + STAYS + """
executor.run(stays, [sys.argv[1]])
"""

tell(interrupted, interrupted_elastic, rank_killed, driver_killed, node_lost)
ray.shutdown()
made.shutdown()
'''
)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return outcomes(SCRIPT, tmp_path_factory.mktemp("ends"))


def test_interrupted_ranks_stay_for_the_next_call(told: Mapping[str, Any]) -> None:
    interrupt, after, left = told["interrupted"]
    assert interrupt == ["KeyboardInterrupt", "NoneType", None]
    assert after == [[[0, 2], [1, 2]]]
    assert left == []


def test_an_elastic_job_that_is_interrupted_leaves_nothing(told: Mapping[str, Any]) -> None:
    assert told["interrupted_elastic"] == [["KeyboardInterrupt", "NoneType", None], []]


def test_a_rank_that_is_killed_is_named(told: Mapping[str, Any]) -> None:
    assert told["rank_killed"] == [["RankDied", "ActorDiedError", 1], []]


def test_nothing_outlives_a_driver_that_is_killed(told: Mapping[str, Any]) -> None:
    assert told["driver_killed"] == []


def test_a_node_whose_raylet_is_killed_is_told_and_leaves_nothing(told: Mapping[str, Any]) -> None:
    [kind, cause], is_its_rank, left = told["node_lost"]
    assert kind == "RankDied"
    assert cause in {"ActorDiedError", "ActorUnavailableError"}, "Ray says first that it cannot be reached"
    assert is_its_rank
    assert left == []
