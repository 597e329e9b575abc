"""Default groups of torch.distributed in actors, static and elastic, on a cluster of two nodes."""

import sys
from typing import TYPE_CHECKING

import ray

from hvd_kernel.ray import ElasticRayExecutor, RayExecutor

if TYPE_CHECKING:
    from driver_cases import report_cases
    from ray_cluster import connected, node
    from torch_group import torch_group

made, _ = connected(node(2), node(1))
packages = sys.argv[1]


def static():
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=100), num_workers=3)
    executor.start(extra_env_vars={"MASTER_ADDR": "localhost"})
    groups = [executor.run(torch_group, [packages]) for _ in range(2)]
    executor.shutdown()
    return groups


def elastic():
    def run():
        import hvd_kernel.numpy as hvd

        hvd.init()
        return hvd.elastic.run(lambda _: torch_group(packages))(hvd.elastic.ObjectState())

    executor = ElasticRayExecutor(ElasticRayExecutor.create_settings(min_num_proc=3))
    executor.start()
    return executor.run(run)


report_cases(static, elastic)
ray.shutdown()
made.shutdown()
