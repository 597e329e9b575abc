"""Two actors on a cluster of two nodes."""

from typing import TYPE_CHECKING

import ray

from hvd_kernel.ray import RayExecutor, ray_logger

if TYPE_CHECKING:
    from driver_cases import report_cases
    from ray_cluster import connected, node


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


report_cases(calls)
