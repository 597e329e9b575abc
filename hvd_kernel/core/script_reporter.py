"""Reports of a script's optimizer steps: to the launcher that has started it, else to the log.

The launcher (launch/monitor.py) compares the ranks. Without a launcher (Slurm, mpirun), or in an elastic job, rank 0
logs what it knows on its own. In a notebook telemetry reports, and the reporter is stopped.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from hvd_kernel.core import agent_channel, call_stack, session
from hvd_kernel.formatting.rank_labels import rank_list
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.messages import OptimizerSteps
from hvd_kernel.protocol.training_apart import nothing_exchanged, steps_allowed

POLL_S = 0.5
"""Seconds between two reads of the optimizers that count their own steps."""

_LOG = logging.getLogger("hvd_kernel")


class ScriptReporter:
    """Reports the optimizers that ``reports`` returns, until it is stopped."""

    def __init__(self, reports: Callable[[], tuple[OptimizerSteps, ...]]) -> None:
        self.is_active = True
        self._reports = reports
        self._reports_at_exit = self._polls = False

    def stop(self) -> None:
        """Report nothing more: something else compares the ranks, or the log has a warning."""
        self.is_active = False

    def report(self, *, over: bool = False) -> None:
        """Report the optimizers now; ``over``: the script ends."""
        if not self.is_active:
            return
        if agent_channel.is_connected() and not session.has_driver():
            agent_channel.send(elastic.encode(elastic.Stepped(self._reports(), over)))
        elif not over:
            for steps in self._reports():
                self._warn_if_apart(steps)

    def report_at_exit(self) -> None:
        """Report when the process ends."""
        if self.is_active and not self._reports_at_exit:
            self._reports_at_exit = True
            atexit.register(self._report_end)

    def poll(self) -> None:
        """Report in a thread when the steps have changed."""
        if self.is_active and not self._polls:
            self._polls = True
            threading.Thread(target=self._poll, name="hvd-guard", daemon=True).start()

    def _report_end(self) -> None:
        with suppress(Exception):
            self.report(over=True)

    def _poll(self) -> None:
        never, latest = threading.Event(), 0
        while self.is_active and not never.wait(POLL_S):
            with suppress(Exception):  # the engine is being replaced: the next read finds out
                steps = sum(optimizer.steps for optimizer in self._reports())
                if steps != latest:
                    latest = steps
                    self.report()

    def _warn_if_apart(self, steps: OptimizerSteps) -> None:
        """Log once, on rank 0, that the ranks have exchanged nothing, unless other ranks wait for this one."""
        if steps.reduced or steps.exchanged or steps.steps < steps_allowed(steps, over=False):
            return
        if any(session.rank() in operation.missing for operation in call_stack.pending(session.engine())):
            return
        if session.rank() == 0:
            _LOG.warning("%s", nothing_exchanged(rank_list(range(session.size())), steps.steps))
        self.stop()
