"""Stage of Spark as a cluster engine (cluster_engine.py): every task holds the agent of one rank.

A barrier stage starts all of its tasks together, and is not retried after a failure. An elastic job has a stage of
independent tasks: Spark starts each as soon as resources are free, and again if its executor is lost. A client of Spark
Connect has no SparkContext, so a DataFrame's mapInPandas runs the tasks; the executors must be able to connect to the
client, as the agents call back.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hvd_kernel.diagnosis.machine import CheckResult
from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.launch.launchers.cluster_engine import Invitation, check_result, inspect_process, reachable
from hvd_kernel.settings.network import addresses
from hvd_kernel.spark.task import variables

_NUMBERS = itertools.count()
_NO_SLOTS, _DYNAMIC = "SPARK-24819", "SPARK-24942"
_HIDDEN = (
    "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    "PYTHON_WORKER_FACTORY_SECRET",
    "PYTHON_WORKER_FACTORY_PORT",
    "PYTHON_WORKER_FACTORY_SOCK_PATH",
)
"""Secrets with which a process could impersonate Spark."""


def active() -> Any:
    """Return the active SparkContext, or the active session of Spark Connect.

    Raises
    ------
    UsageError
        Neither is active.
    """
    try:
        from pyspark import SparkContext  # noqa: PLC0415 - PySpark is an optional dependency
    except ImportError as error:
        raise UsageError(f"hvd_kernel.spark needs PySpark: {install_command('spark')}.") from error
    context = SparkContext._active_spark_context or _session()  # noqa: SLF001 - public functions would create one
    if context is None:
        raise UsageError("Could not find an active SparkContext, are you running in a PySpark session?")
    return context


def _session() -> Any:
    from pyspark.sql.utils import is_remote  # noqa: PLC0415 - as above

    if not is_remote():
        return None
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415 - has other dependencies

    return SparkSession.getActiveSession()


class Stage:
    """A stage with a task for each rank.

    Parameters
    ----------
    context
        The SparkContext.
    np
        Number of ranks.
    nics
        Network interfaces of the driver that executors can reach.
    barrier
        Whether all tasks start together.
    """

    name = "Spark"
    hidden: tuple[str, ...] = _HIDDEN

    def __init__(self, context: Any, np: int, nics: str | Sequence[str] | None, *, barrier: bool) -> None:
        self.error: BaseException | None = None
        self._context, self._np, self._barrier = context, np, barrier
        self._group = f"horovod.spark.run.{next(_NUMBERS)}"
        names = [nics] if isinstance(nics, str) else [*(nics or ())]
        self.interface = names[0] if names else ""
        self.addresses: Sequence[str] = self._reachable(names)

    def work(self, invitation: Invitation) -> None:
        """Run the stage."""
        try:
            self._run(invitation)
        except BaseException as error:
            self.error = error
            raise

    def _run(self, invitation: Invitation) -> None:
        self._context.setJobGroup(self._group, "ranks of Horovod", interruptOnCancel=True)
        tasks = self._context.parallelize(range(self._np), self._np)
        (tasks.barrier() if self._barrier else tasks).mapPartitions(_Rank(invitation)).collect()

    def _reachable(self, names: Sequence[str]) -> list[str]:
        """Return the driver's addresses for executors, first Spark's address; [] if all tasks are on this host."""
        if self._context.master.startswith("local"):
            return []
        return outward(names, self._context.getConf().get("spark.driver.host", ""))

    def cancel(self) -> None:
        """Cancel the stage's job."""
        self._context.cancelJobGroup(self._group)

    def explain(self, error: BaseException) -> str:
        """Return Spark's error message for a failed stage, and the remedy."""
        message = error_message(error)
        if _NO_SLOTS in message:
            return f"num_proc={self._np} tasks must run at the same time. {self.shortage()} Spark says: {message}"
        if _DYNAMIC in message:
            return f"set spark.dynamicAllocation.enabled=false, or use run_elastic. Spark says: {message}"
        if "No module named 'hvd_kernel'" in message:
            return (
                f"{message}: install hvd-kernel for the Python of the executors, or name another one by PYSPARK_PYTHON."
            )
        return message

    def shortage(self) -> str:
        """Return a sentence with the number of tasks that Spark can run at the same time."""
        slots = _slots(self._context)
        return "" if slots is None else f"Spark can run {slots} task(s) at the same time now, counting busy ones."


class _Rank:
    """Function of a task, pickled by the name of its module."""

    def __init__(self, invitation: Invitation) -> None:
        self._invitation = invitation

    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        del rows
        hold(self._invitation)
        return iter(())


def hold(invitation: Invitation) -> None:
    """Run the rank of the task in this process."""
    from pyspark import TaskContext  # noqa: PLC0415 - see ``active``

    task = TaskContext.get()
    assert task is not None
    invitation.accept(task.partitionId(), variables(task.resources()))


def error_message(error: BaseException) -> str:
    """Return the message of an error from Py4J or gRPC, without the stack trace of the JVM."""
    java = getattr(error, "java_exception", None)
    text = str(error if java is None else java)
    if details := re.search(r'^\s*details = "(.*)"$', text, re.MULTILINE):  # from Spark Connect
        return details[1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python_errors = [
        line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line) and not line.startswith("org.apache")
    ]
    first = next((line for line in lines if not line.startswith("An error occurred while calling")), text)
    return python_errors[-1] if python_errors else re.sub(r"^(: )?([\w.$]+: )", "", first)


def outward(names: Sequence[str], first: str) -> list[str]:
    """Return the addresses of the named interfaces, or all addresses of this host that other hosts can reach."""
    by_interface = addresses()
    if names:
        return [by_interface[name] for name in names if name in by_interface]
    external = [first, *(address for address in by_interface.values() if not address.startswith("127."))]
    return [address for address in dict.fromkeys(external) if address]


def _slots(context: Any) -> int | None:
    try:
        scala = context._jsc.sc()  # noqa: SLF001 - as in Spark's check of barrier stages
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
    except Exception:  # noqa: BLE001 - another version may have no such method, or the JVM may be gone
        return None


_HERE = ("localhost", "127.0.0.1", "[::1]")


class ConnectStage(Stage):
    """A stage in a session of Spark Connect; for the arguments see ``Stage``."""

    def _run(self, invitation: Invitation) -> None:
        self._context.addTag(self._group)
        rows = self._context.range(0, self._np, 1, self._np)
        rows.mapInPandas(_task(invitation), "rank long", barrier=self._barrier).collect()

    def _reachable(self, names: Sequence[str]) -> list[str]:
        """Return the client's addresses for executors; [] if a server on this host runs the tasks."""
        return [] if self._context.client.host in _HERE and not names else outward(names, "")

    def cancel(self) -> None:
        """Interrupt the stage's query."""
        self._context.interruptTag(self._group)

    def shortage(self) -> str:
        """Return an empty string: a client cannot query the cluster's resources."""
        return ""


def size(session: Any) -> int:
    """Return the default number of ranks.

    Raises
    ------
    ConfigError
        The server has no default.
    """
    value = session.conf.get("spark.default.parallelism", None)
    if value is None:
        raise ConfigError("num_proc is missing: Spark Connect does not tell how many tasks may run, e.g. num_proc=4.")
    return int(value)


def _task(invitation: Invitation) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def rank(frames: Iterator[Any]) -> Iterator[Any]:
        for _ in frames:
            pass
        hold(invitation)
        yield from ()

    return rank


# Checks: ``%hvd doctor --on spark``


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
