"""Grace period: seconds that ranks get between SIGTERM and SIGKILL.

A batch system that cancels a job sends SIGTERM to its processes, and SIGKILL later. The ranks have to be stopped before
that, so that the launcher can still write their last output and report how the job ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hvd_kernel.settings import lookup

SETTING = "HVD_GRACE_PERIOD"

Ask = Callable[[list[str]], str | None]

_AFTER_FAILURE_S = 5.0  # the job has failed: no rank can complete anything with the others
_CANCELLED_S = 30.0  # enough for a checkpoint
_MARGIN_S = 2.0  # to stop the ranks, write their last output and report the end
_KILL_WAIT = re.compile(r"^KillWait\s*=\s*([0-9]+)\s*sec", re.MULTILINE)
_KILLED_AFTER_S = (
    ("SLURM_JOB_ID", 30.0),  # KillWait's default
    ("LSB_JOBID", 10.0),  # JOB_TERMINATE_INTERVAL
    ("PBS_JOBID", 10.0),  # kill_delay
    ("KUBERNETES_SERVICE_HOST", 30.0),  # terminationGracePeriodSeconds
)
"""Variable of a platform -> seconds between its SIGTERM and its SIGKILL, by default. The first that is set counts."""


@dataclass(frozen=True)
class GracePeriod:
    """Seconds between SIGTERM and SIGKILL for ranks that have to be stopped."""

    after_failure_s: float  # because another rank has failed
    cancelled_s: float  # because a signal has cancelled the job


def grace_period(chosen_s: float | None, env: Mapping[str, str], ask: Ask = lambda _: None) -> GracePeriod:
    """Return the grace period of a job: the user's, else the platform's with a margin. Pure.

    Parameters
    ----------
    chosen_s
        The user's, from a flag or an argument, in seconds; None: that of ``HVD_GRACE_PERIOD``, if it is set.
    env
        The environment of the launcher.
    ask
        Function that returns the output of a command, or None if it fails; for Slurm's configuration.

    Raises
    ------
    ConfigError
        ``HVD_GRACE_PERIOD`` has a value that cannot be used.
    """
    if chosen_s is None and (value := lookup.value(SETTING, env)):
        chosen_s = float(value)
    if chosen_s is not None:
        return GracePeriod(chosen_s, chosen_s)
    killed_after_s = _killed_after(env, ask)
    if killed_after_s is None:
        return GracePeriod(_AFTER_FAILURE_S, _CANCELLED_S)
    return GracePeriod(_AFTER_FAILURE_S, max(killed_after_s - _MARGIN_S, killed_after_s / 2))


def _killed_after(env: Mapping[str, str], ask: Ask) -> float | None:
    """Return the seconds between the platform's SIGTERM and its SIGKILL; None outside of a known platform."""
    variable, seconds = next(((name, value) for name, value in _KILLED_AFTER_S if env.get(name)), ("", None))
    if variable == "SLURM_JOB_ID" and (match := _KILL_WAIT.search(ask(["scontrol", "show", "config"]) or "")):
        return float(match[1])
    return seconds
