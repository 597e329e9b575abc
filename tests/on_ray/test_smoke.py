"""Ray, end to end: two ranks that are actors reduce, log and raise.

The default tier's only test of Ray: the first one to run makes the environment.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hvdtest.ray_driver import outcomes

SCRIPT = """
from hvd_kernel.ray import RayExecutor, ray_logger

def reduces(factor):
    import numpy as np
    import hvd_kernel.numpy as hvd
    hvd.init()
    total = hvd.allreduce(np.array([hvd.rank() + 1.0]), op=hvd.Sum)
    ray_logger.log({"rank": hvd.rank()}, chief_only=False)
    return [hvd.rank(), hvd.size(), factor * float(total[0])]

def raises():
    import hvd_kernel.numpy as hvd
    hvd.init()
    if hvd.rank() == 1:
        raise ValueError("bad shard")
    hvd.barrier()

def calls():
    made, _ = connected(node(2))
    executor, heard = RayExecutor(RayExecutor.create_settings(timeout_s=100), num_workers=2), []
    executor.start()
    values = executor.run(reduces, [2], callbacks=[lambda said: heard.append(said["rank"])])
    try:
        executor.run(raises)
    except Exception as error:
        cause = [type(error).__name__, error.rank, repr(error.__cause__)]
    executor.shutdown()
    ray.shutdown()
    made.shutdown()
    return [values, sorted(heard), cause]

tell(calls)
"""


@pytest.mark.mp
@pytest.mark.timeout(600)
def test_two_actors_reduce_log_and_raise(tmp_path: Path) -> None:
    values, heard, cause = outcomes(SCRIPT, tmp_path)["calls"]
    assert values == [[0, 2, 6.0], [1, 2, 6.0]]
    assert heard == [0, 1]
    assert cause == ["RankFailed", 1, "ValueError('bad shard')"]
