"""Ctrl-C, and the loss of a driver, a rank or a node: the error of the caller, and that no process is left.

The driver is on a node of the cluster, or a client (``ray://``): there everything takes longer. Beside a load of 25 a
client's first connection took 170 s, and all cases 400 s, of which 30 s are Ray's patience with a client that is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hvdtest.ray_driver import outcomes
from hvdtest.ray_ends import ENDS

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(1300)]

LONG_S = 1200

SCRIPT = (
    ENDS
    + '''
is_client = sys.argv[1:] == ["client"]
made, others = cluster(node(1), node(1), node(1))
address = client_of if is_client else lambda made: made.address
ray.init(address(made), log_to_driver=False)
settings = RayExecutor.create_settings(timeout_s=100)

def logs(factor):
    import hvd_kernel.numpy as hvd
    from hvd_kernel.ray import ray_logger
    hvd.init()
    ray_logger.log({"rank": hvd.rank()}, chief_only=False)
    hvd.barrier()
    return factor * hvd.rank()

def raises():
    import hvd_kernel.numpy as hvd
    hvd.init()
    if hvd.rank() == 1:
        raise ValueError("bad shard")
    hvd.barrier()

def calls_of(executor):
    heard = []
    executor.start()
    found = [executor.run(logs, [3], callbacks=[lambda said: heard.append(said["rank"])]), sorted(heard)]
    return [*found, came_of(executor.run, raises)]

def calls():
    executor = RayExecutor(settings, num_workers=2)
    found = [*calls_of(executor), ray.get(executor.run_remote(place))]
    executor.shutdown()
    return found

def calls_elastic():
    return calls_of(RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=2, reset_limit=0))

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
    os.kill(processes[1][1], signal.SIGKILL)  # a rank's processes in other sessions have no owner once it is killed
    return [said, left(processes)]

def driver_killed():
    here = folder("driver")
    script = DRIVER.replace("ADDRESS", address(made))
    driver = subprocess.Popen([sys.executable, "-P", "-c", script, here], stdout=subprocess.DEVNULL)
    processes = begun(here, 2)
    driver.kill()
    driver.wait()
    ranks, below = [[each[:1] for each in processes], [each[1:] for each in processes]]
    found = [left(ranks), left(below, within=5 if is_client else 60)]
    for each in found[1]:
        os.kill(each, signal.SIGKILL)
    return found

def node_lost():
    executor, here = RayExecutor(settings, num_hosts=3), folder("node")
    executor.start()
    lost = executor.run(lambda: os.environ["HVD_HOST"]).index(others[1].node_id)
    raylet = others[1].all_processes["raylet"][0].process
    processes = meanwhile(here, 3, lambda _: (raylet.kill(), raylet.wait()))  # its workers take a zombie for one that lives
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

report_cases(calls, calls_elastic, interrupted, interrupted_elastic, rank_killed, driver_killed, node_lost)
ray.shutdown()
made.shutdown()
'''
)


@pytest.fixture(scope="module", params=["node", "client"])
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    found = outcomes(SCRIPT, tmp_path_factory.mktemp("ends"), request.param, seconds=LONG_S)
    return {**found, "driver": request.param}


def test_results_logged_values_and_causes_reach_the_caller(results: Mapping[str, Any]) -> None:
    *fixed, references = results["calls"]
    assert fixed == results["calls_elastic"] == [[0, 3], [0, 1], ["RankFailed", "ValueError", 1]]
    assert references == [[0, 2], [1, 2]]


def test_interrupted_ranks_serve_the_next_call(results: Mapping[str, Any]) -> None:
    interrupt, after, left = results["interrupted"]
    assert interrupt == ["KeyboardInterrupt", "NoneType", None]
    assert after == [[[0, 2], [1, 2]]]
    assert left == []


def test_interrupted_elastic_job_leaves_no_process(results: Mapping[str, Any]) -> None:
    assert results["interrupted_elastic"] == [["KeyboardInterrupt", "NoneType", None], []]


def test_killed_rank_is_named(results: Mapping[str, Any]) -> None:
    assert results["rank_killed"] == [["RankDied", "ActorDiedError", 1], []]


def test_no_process_outlives_a_killed_driver(results: Mapping[str, Any]) -> None:
    ranks, below = results["driver_killed"]
    assert ranks == []
    if results["driver"] == "node":  # a client's ranks are killed by their raylet 0.2 s after its SIGTERM
        assert below == []


def test_node_with_a_killed_raylet_is_named_and_cleaned(results: Mapping[str, Any]) -> None:
    [kind, cause], is_its_rank, left = results["node_lost"]
    assert kind == "RankDied"
    assert cause in {"ActorDiedError", "ActorUnavailableError"}, "Ray says first that it cannot be reached"
    assert is_its_rank
    assert left == []
