"""Spark Connect as a cluster engine: a client has no SparkContext, so a DataFrame's mapInPandas runs the tasks.

The executors must reach the client, which they need for nothing else: the agents call back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.launchers.cluster_engine import Invitation
from hvd_kernel.spark.stage import Stage, hold, outward

_HERE = ("localhost", "127.0.0.1", "[::1]")


class ConnectStage(Stage):
    """One stage that a session of Spark Connect runs; arguments as of ``Stage``."""

    def _run(self, invitation: Invitation) -> None:
        self._context.addTag(self._group)
        rows = self._context.range(0, self._np, 1, self._np)
        rows.mapInPandas(_task(invitation), "rank long", barrier=self._barrier).collect()

    def _reachable(self, names: Sequence[str]) -> list[str]:
        """Return where executors may reach this client; [] where the server is on this host, and runs them itself."""
        return [] if self._context.client.host in _HERE and not names else outward(names, "")

    def cancel(self) -> None:
        """Interrupt the stage's query."""
        self._context.interruptTag(self._group)

    def shortage(self) -> str:
        """Say nothing: a client is not told what the cluster has."""
        return ""


def size(session: Any) -> int:
    """Return the default number of ranks.

    Raises
    ------
    ConfigError
        The server says none.
    """
    said = session.conf.get("spark.default.parallelism", None)
    if said is None:
        raise ConfigError("num_proc is missing: Spark Connect does not tell how many tasks may run, e.g. num_proc=4.")
    return int(said)


def _task(invitation: Invitation) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def rank(frames: Iterator[Any]) -> Iterator[Any]:
        for _ in frames:
            pass
        hold(invitation)
        yield from ()

    return rank
