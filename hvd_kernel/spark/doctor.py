"""Checks of what a notebook's ranks on Spark need: ``%hvd doctor --on spark``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hvd_kernel.diagnosis.machine import CheckResult
from hvd_kernel.errors import UsageError
from hvd_kernel.launch.launchers.cluster_engine import check_result, inspect_process, reachable
from hvd_kernel.spark.stage import Stage, active, error_message

_DYNAMIC = "spark.dynamicAllocation.enabled"


def examine() -> list[CheckResult]:
    """Check Spark, and the Python of its executors."""
    try:
        context = active()
    except UsageError as error:
        return [CheckResult("Spark", False, "not at hand", str(error))]
    if not hasattr(context, "parallelize"):
        return [CheckResult("Spark", True, f"{context.version}, by Spark Connect: its executors cannot be looked at")]
    stage = Stage(context, 1, None, barrier=True)
    results = [CheckResult("Spark", True, f"{context.version}, {context.master}. {stage.shortage()}".rstrip())]
    if context.getConf().get(_DYNAMIC, "false") == "true":
        fix = f"{_DYNAMIC}=false: barrier stages and dynamic allocation exclude each other"
        results.append(CheckResult("allocation", False, f"{_DYNAMIC}=true", fix))
    return results + _executors(context, next(iter(stage.addresses), ""))


def _executors(context: Any, address: str) -> list[CheckResult]:
    n = context.defaultParallelism
    with reachable(address) as (host, port):
        try:
            answers = context.parallelize(range(n), n).mapPartitions(_Inspect(host, port)).collect()
        except Exception as error:  # noqa: BLE001 - any failure of the task is a failed check of the executors
            fix = "install hvd-kernel for the Python of the executors, or name another one by PYSPARK_PYTHON"
            return [CheckResult("executors", False, error_message(error), fix)]
    by_host = {answer["host"]: answer for answer in answers}
    return [check_result(f"executors on {name}", answer) for name, answer in sorted(by_host.items())]


class _Inspect:
    """Function of a task, pickled by the name of its module."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port

    def __call__(self, rows: Iterator[Any]) -> Iterator[dict[str, str]]:
        """Yield an inspection of this executor."""
        for _ in rows:
            pass
        yield inspect_process(*self._address)
