"""Trials of Ray Tune with ranks."""

from pathlib import Path
from typing import TYPE_CHECKING

import ray
from ray import tune

from hvd_kernel.ray.tune import DistributedTrainableCreator

if TYPE_CHECKING:
    from driver_cases import report_cases
    from ray_cluster import connected, node

made, others = connected(node(2), node(2))


def train(config):
    import tempfile
    from pathlib import Path

    import numpy as np

    import hvd_kernel.numpy as hvd
    from hvd_kernel.ray.tune import get_checkpoint, report

    hvd.init()
    if config.get("fails") == hvd.rank():
        raise ValueError("shard", hvd.rank())
    begin = get_checkpoint()
    last = 0 if begin is None else int((begin / "step").read_text())
    for step in range(last + 1, last + 3):
        total = hvd.allreduce(np.array([config["rate"] * (hvd.rank() + 1)]), op=hvd.Sum)
        folder = Path(tempfile.mkdtemp())
        (folder / "step").write_text(str(step))
        report({"step": step, "total": float(total[0]), "size": hvd.size()}, checkpoint=folder)


def fitted(trainable, space, **run):
    where = tune.RunConfig(storage_path=str(Path("results").absolute()), verbose=0, **run)
    return tune.Tuner(trainable, param_space=space, run_config=where).fit()


def row(result):
    return [
        result.metrics["step"],
        result.metrics["total"],
        result.metrics["size"],
        result.metrics["training_iteration"],
    ]


def trials():
    found = fitted(
        DistributedTrainableCreator(train, num_workers=2, timeout_s=200), {"rate": tune.grid_search([1.0, 10.0])}
    )
    return sorted(row(result) for result in found)


def hosts():
    def places(config):
        import hvd_kernel.numpy as hvd
        from hvd_kernel.ray.tune import report

        hvd.init()
        report({"size": hvd.size(), "local": hvd.local_size(), "cross": hvd.cross_size()})

    trainable = DistributedTrainableCreator(places, num_hosts=2, num_workers=1, timeout_s=200)
    [result] = fitted(trainable, {})
    return [result.metrics[name] for name in ("size", "local", "cross")]


def goes_on():
    def again(config):
        from hvd_kernel.ray.tune import get_checkpoint

        came = get_checkpoint()
        if came is None:
            train(config)
            raise RuntimeError("once")
        train(config)

    failure = tune.FailureConfig(max_failures=1)
    [result] = fitted(
        DistributedTrainableCreator(again, num_workers=2, timeout_s=200), {"rate": 1.0}, failure_config=failure
    )
    return [row(result)[:3], (Path(result.checkpoint.path) / "step").read_text(), result.error is None]


def failing():
    [result] = fitted(DistributedTrainableCreator(train, num_workers=2, timeout_s=200), {"rate": 1.0, "fails": 1})
    return [type(result.error).__name__, "rank 1 of 2 raised ValueError: ('shard', 1)" in str(result.error)]


report_cases(trials, hosts, goes_on, failing)
ray.shutdown()
made.shutdown()
