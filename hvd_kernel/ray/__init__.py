"""``hvd_kernel.ray``: ranks on a Ray cluster, by Horovod's names."""

from hvd_kernel.ray.elastic import ElasticRayExecutor
from hvd_kernel.ray.runner import RayExecutor
from hvd_kernel.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]
