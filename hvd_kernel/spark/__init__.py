"""``hvd_kernel.spark``: ranks as tasks of a Spark job, by Horovod's names."""

from hvd_kernel.spark.runner import run, run_elastic

__all__ = ["run", "run_elastic"]
