"""Spark Connect as a cluster engine: a client has no SparkContext, so a DataFrame's mapInPandas runs the tasks.

The executors must be able to connect to the client, as the agents call back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.launchers.cluster_engine import Invitation
from hvd_kernel.spark.stage import Stage, hold, outward

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
