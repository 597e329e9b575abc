"""``RayExecutor`` from a client of Ray's (``ray://``), which is not on the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hvdtest.ray_driver import outcomes

from hvd_kernel.processes.ports import bound

pytestmark = [pytest.mark.mp, pytest.mark.nightly, pytest.mark.timeout(600)]

SCRIPT = """
from hvd_kernel.ray import RayExecutor, ray_logger
port = int(sys.argv[1])
made, _ = cluster(node(2, ray_client_server_port=port))
ray.init(f"ray://127.0.0.2:{port}")

def place(offset):
    import numpy as np
    import hvd_kernel.numpy as hvd
    hvd.init()
    ray_logger.log({"rank": hvd.rank()})
    total = hvd.allreduce(np.array([hvd.rank() + offset]), op=hvd.Sum)
    return [hvd.rank(), hvd.size(), int(total[0])]

def fails():
    raise ValueError("shard", 1)

def train():
    import numpy as np
    import hvd_kernel.numpy as hvd
    hvd.init()
    state = hvd.elastic.ObjectState(step=0, total=0)

    @hvd.elastic.run
    def steps(state):
        while state.step < 3:
            state.total += int(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
            state.step += 1
            ray_logger.log({"step": state.step})
            state.commit()

    steps(state)
    return [hvd.rank(), hvd.size(), state.total]

fixed = RayExecutor(RayExecutor.create_settings(timeout_s=100), num_workers=2)
elastic = RayExecutor(RayExecutor.create_settings(), min_workers=2)

def results():
    fixed.start()
    heard = []
    return [fixed.run(place, (1,), callbacks=[heard.append]), heard]

def references():
    return ray.get(fixed.run_remote(place, (1,)))

def cause():
    return fixed.run(fails)

def elastic_results():
    fixed.shutdown()
    elastic.start()
    heard = []
    return [elastic.run(train, callbacks=[heard.append]), heard]

def elastic_cause():
    return elastic.run(fails)

tell(results, references, cause, elastic_results, elastic_cause)
ray.shutdown()
made.shutdown()
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    with bound() as port:
        return outcomes(SCRIPT, tmp_path_factory.mktemp("client"), str(port.getsockname()[1]))


def test_results_and_logged_values_reach_the_client(told: Mapping[str, Any]) -> None:
    assert told["results"] == [[[0, 2, 3], [1, 2, 3]], [{"rank": 0}]]
    assert told["references"] == [[0, 2, 3], [1, 2, 3]]


def test_those_of_an_elastic_job_too(told: Mapping[str, Any]) -> None:
    assert told["elastic_results"] == [[[0, 2, 6], [1, 2, 6]], [{"step": 1}, {"step": 2}, {"step": 3}]]


def test_what_a_rank_raises_is_the_cause(told: Mapping[str, Any]) -> None:
    for failed in (told["cause"], told["elastic_cause"]):
        assert (failed["raised"], failed["cause"], failed["args"]) == ("RankFailed", "ValueError", ["shard", "1"])
