"""Stage of Spark as a cluster engine (cluster_engine.py): every task holds the agent of one rank.

A barrier stage starts all of its tasks together, and is not tried again when one has failed. An elastic job has a stage
of independent tasks: Spark starts each as soon as there is room, and once more where its executor is lost.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hvd_kernel.errors import UsageError
from hvd_kernel.launch.launchers.cluster_engine import Invitation
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
"""By these a process could speak as Spark's own."""


def active() -> Any:
    """Return the active SparkContext, or the session of Spark Connect where there is none.

    Raises
    ------
    UsageError
        There is none.
    """
    try:
        from pyspark import SparkContext  # noqa: PLC0415 - the package without it has no Spark
    except ImportError as error:
        raise UsageError("hvd_kernel.spark needs PySpark: pip install 'hvd-kernel[spark]'.") from error
    found = SparkContext._active_spark_context or _session()  # noqa: SLF001 - all else would make one
    if found is None:
        raise UsageError("Could not find an active SparkContext, are you running in a PySpark session?")
    return found


def _session() -> Any:
    from pyspark.sql.utils import is_remote  # noqa: PLC0415 - as above

    if not is_remote():
        return None
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415 - has packages of its own

    return SparkSession.getActiveSession()


class Stage:
    """One stage of as many tasks as there are ranks.

    Parameters
    ----------
    found
        The SparkContext.
    np
        How many.
    nics
        Interfaces of the driver's that executors reach.
    barrier
        Whether all start together.
    """

    name = "Spark"
    hidden: tuple[str, ...] = _HIDDEN

    def __init__(self, found: Any, np: int, nics: str | Sequence[str] | None, *, barrier: bool) -> None:
        self.error: BaseException | None = None
        self._context, self._np, self._barrier = found, np, barrier
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
        """Return where executors reach the driver, first where they do already; [] where all are on this host."""
        if self._context.master.startswith("local"):
            return []
        return outward(names, self._context.getConf().get("spark.driver.host", ""))

    def cancel(self) -> None:
        """Cancel the stage's job."""
        self._context.cancelJobGroup(self._group)

    def explain(self, error: BaseException) -> str:
        """Return what Spark says of a stage that has failed."""
        said = said_by_spark(error)
        if _NO_SLOTS in said:
            return f"num_proc={self._np} tasks must run at the same time. {self.shortage()} Spark says: {said}"
        if _DYNAMIC in said:
            return f"set spark.dynamicAllocation.enabled=false, or use run_elastic. Spark says: {said}"
        if "No module named 'hvd_kernel'" in said:
            return f"{said}: install hvd-kernel for the Python of the executors, or name another one by PYSPARK_PYTHON."
        return said

    def shortage(self) -> str:
        """Say how many tasks Spark can run at the same time."""
        slots = _slots(self._context)
        return "" if slots is None else f"Spark can run {slots} task(s) at the same time now, counting busy ones."


class _Rank:
    """What a task does. It is sent to the executors by its module's name."""

    def __init__(self, invitation: Invitation) -> None:
        self._invitation = invitation

    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        del rows
        hold(self._invitation)
        return iter(())


def hold(invitation: Invitation) -> None:
    """Bring the rank of the task that this process runs."""
    from pyspark import TaskContext  # noqa: PLC0415 - see ``active``

    task = TaskContext.get()
    assert task is not None
    invitation.accept(task.partitionId(), variables(task.resources()))


def said_by_spark(error: BaseException) -> str:
    """Return the sentence of an error that came through Py4J or gRPC, without the stack of the JVM."""
    java = getattr(error, "java_exception", None)
    text = str(error if java is None else java)
    if told := re.search(r'^\s*details = "(.*)"$', text, re.MULTILINE):  # of a client of Spark Connect
        return told[1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line) and not line.startswith("org.apache")]
    first = next((line for line in lines if not line.startswith("An error occurred while calling")), text)
    return own[-1] if own else re.sub(r"^(: )?([\w.$]+: )", "", first)


def outward(names: Sequence[str], first: str) -> list[str]:
    """Return the addresses of this host's interfaces of these names, else all by which others may reach it."""
    here = addresses()
    if names:
        return [here[name] for name in names if name in here]
    found = [first, *(each for each in here.values() if not each.startswith("127."))]
    return [each for each in dict.fromkeys(found) if each]


def _slots(found: Any) -> int | None:
    try:
        scala = found._jsc.sc()  # noqa: SLF001 - Spark's own check of barrier stages asks the same
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
    except Exception:  # noqa: BLE001 - another version may have no such method, or the JVM may be gone
        return None
