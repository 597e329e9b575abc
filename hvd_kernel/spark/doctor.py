"""What is missing for a notebook's ranks on Spark: ``%hvd doctor --on spark``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hvd_kernel.diagnosis.machine import CheckResult
from hvd_kernel.errors import UsageError
from hvd_kernel.launch.launchers.engine_look import finding, look, reachable
from hvd_kernel.spark.stage import Stage, active, said_by_spark

_DYNAMIC = "spark.dynamicAllocation.enabled"


def examine() -> list[CheckResult]:
    """Look at Spark, and at the Python of its executors."""
    try:
        found = active()
    except UsageError as error:
        return [CheckResult("Spark", False, "not at hand", str(error))]
    if not hasattr(found, "parallelize"):
        return [CheckResult("Spark", True, f"{found.version}, by Spark Connect: its executors cannot be looked at")]
    stage = Stage(found, 1, None, barrier=True)
    said = [CheckResult("Spark", True, f"{found.version}, {found.master}. {stage.shortage()}".rstrip())]
    if found.getConf().get(_DYNAMIC, "false") == "true":
        fix = f"{_DYNAMIC}=false: barrier stages and dynamic allocation exclude each other"
        said.append(CheckResult("allocation", False, f"{_DYNAMIC}=true", fix))
    return said + _executors(found, next(iter(stage.addresses), ""))


def _executors(found: Any, address: str) -> list[CheckResult]:
    n = found.defaultParallelism
    with reachable(address) as (host, port):
        try:
            told = found.parallelize(range(n), n).mapPartitions(_Look(host, port)).collect()
        except Exception as error:  # noqa: BLE001 - whatever executors cannot do is what is wrong with them
            fix = "install hvd-kernel for the Python of the executors, or name another one by PYSPARK_PYTHON"
            return [CheckResult("executors", False, said_by_spark(error), fix)]
    by_host = {each["host"]: each for each in told}
    return [finding(f"executors on {name}", each) for name, each in sorted(by_host.items())]


class _Look:
    """What a task does. It is sent to the executors by its module's name."""

    def __init__(self, host: str, port: int) -> None:
        self._where = host, port

    def __call__(self, rows: Iterator[Any]) -> Iterator[dict[str, str]]:
        """Yield one answer."""
        for _ in rows:
            pass
        yield look(*self._where)
