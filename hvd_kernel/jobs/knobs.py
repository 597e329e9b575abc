"""Flags that set environment variables of the ranks: a table with their names in hvdrun's configuration file.

The allowed values and their meaning are defined in the tables of ``hvd_kernel.settings``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hvd_kernel.settings import SETTINGS

Turn = Callable[[str], str]

_MB = 1 << 20
_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off"}


@dataclass(frozen=True)
class Knob:
    """A row of the table.

    A switch has ``flags`` for yes and ``off`` for no; other flags have a value. ``turn`` converts the user's text to
    the variable's value. ``doc`` is set if the flag differs from the variable, or has no effect.
    """

    key: str  # in the configuration file, below ``section``
    section: str
    variable: str
    flags: tuple[str, ...]
    off: tuple[str, ...] = ()
    doc: str = ""
    turn: Turn = str
    unit: str = ""  # of the flag's value, if it differs from the variable's unit

    @property
    def switch(self) -> bool:
        """Return whether this is a switch, without a value."""
        return bool(self.off)

    @property
    def dest(self) -> str:
        """Name of the parsed flag."""
        return f"{self.section}.{self.key}"

    @property
    def help(self) -> str:
        """Help text: by default that of the variable in the table of settings, with the default value."""
        if self.doc:
            return self.doc
        row = next(row for row in SETTINGS if self.variable in row.variables)
        default = {"0": "off", "1": "on"}.get(row.default, row.default) if self.switch else row.default
        return f"{row.doc} (default: {default})" if default else row.doc

    def value(self, text: str) -> str:
        """Return the variable's value.

        Raises
        ------
        ValueError
            The text is invalid; the message has the allowed values.
        """
        turned = self.turn(text)
        check = _checks().get(self.variable)
        if check is not None:
            check(turned)
        return turned

    def argument(self, text: str) -> str:
        """Return the variable's value, or raise the error class of argparse."""
        try:
            return self.value(text)
        except ValueError as expected:
            raise argparse.ArgumentTypeError(f"{text!r} cannot be used: it must be {expected}") from None


def _checks() -> dict[str, Callable[[str], str]]:
    return {name: row.check for row in SETTINGS for name in row.variables}


def _megabytes(text: str) -> str:
    if not text.strip().isdecimal():
        raise ValueError("a whole number of megabytes, at least 0")
    return str(int(text) * _MB)


def _whole(text: str) -> str:
    if not text.strip().isdecimal():
        raise ValueError("a whole number, at least 0")
    return text.strip()


def _yes(text: str) -> str:
    if text.strip().lower() not in _YES | _NO:
        raise ValueError("true or false")
    return "1" if text.strip().lower() in _YES else "0"


def _no(text: str) -> str:
    return "0" if _yes(text) == "1" else "1"


def _switch(section: str, name: str, variable: str, key: str = "", doc: str = "") -> Knob:
    return Knob(key or name.replace("-", "_"), section, variable, (f"--{name}",), (f"--no-{name}",), doc, _yes)


def _value(section: str, name: str, variable: str, key: str = "", **more: Any) -> Knob:
    return Knob(key or name.replace("-", "_"), section, variable, (f"--{name}",), **more)


PARAMS = "params"
AUTOTUNE = "autotune"
TIMELINE = "timeline"
STALL = "stall_check"
LIBRARY = "library_options"
LOGGING = "logging"

KNOBS = (
    _value(
        PARAMS,
        "fusion-threshold-mb",
        "HOROVOD_FUSION_THRESHOLD",
        doc="most MB in one fused operation; 0: never fuse (default: 128)",
        turn=_megabytes,
        unit="MiB",
    ),
    _value(PARAMS, "cycle-time-ms", "HOROVOD_CYCLE_TIME"),
    _value(PARAMS, "cache-capacity", "HOROVOD_CACHE_CAPACITY"),
    _switch(PARAMS, "hierarchical-allreduce", "HOROVOD_HIERARCHICAL_ALLREDUCE"),
    _switch(PARAMS, "hierarchical-allgather", "HOROVOD_HIERARCHICAL_ALLGATHER"),
    _switch(PARAMS, "torus-allreduce", "HOROVOD_TORUS_ALLREDUCE", doc="no effect: an algorithm of NCCL"),
    _switch(AUTOTUNE, "autotune", "HOROVOD_AUTOTUNE", "enabled"),
    _value(AUTOTUNE, "autotune-log-file", "HOROVOD_AUTOTUNE_LOG", "log_file"),
    _value(AUTOTUNE, "autotune-warmup-samples", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "warmup_samples"),
    _value(AUTOTUNE, "autotune-steps-per-sample", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "steps_per_sample"),
    _value(
        AUTOTUNE, "autotune-bayes-opt-max-samples", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "bayes_opt_max_samples"
    ),
    _value(
        AUTOTUNE, "autotune-gaussian-process-noise", "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "gaussian_process_noise"
    ),
    _value(TIMELINE, "timeline-filename", "HOROVOD_TIMELINE", "filename"),
    _switch(TIMELINE, "timeline-mark-cycles", "HOROVOD_TIMELINE_MARK_CYCLES", "mark_cycles"),
    Knob(
        "enabled",
        STALL,
        "HOROVOD_STALL_CHECK_DISABLE",
        ("--stall-check",),
        ("--no-stall-check",),
        "report tensors that some ranks have not submitted (default: on)",
        _no,
    ),
    _value(STALL, "stall-check-warning-time-seconds", "HOROVOD_STALL_CHECK_TIME_SECONDS", "warning_time_seconds"),
    _value(STALL, "stall-check-shutdown-time-seconds", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "shutdown_time_seconds"),
    _switch(LIBRARY, "mpi-threads-disable", "HOROVOD_MPI_THREADS_DISABLE", doc="no effect"),
    _value(LIBRARY, "num-nccl-streams", "HOROVOD_NUM_NCCL_STREAMS", doc="no effect", turn=_whole),
    _value(LIBRARY, "thread-affinity", "HOROVOD_THREAD_AFFINITY"),
    _value(LIBRARY, "gloo-timeout-seconds", "HOROVOD_GLOO_TIMEOUT_SECONDS"),
    _switch(LIBRARY, "mps", "HVD_MPS"),
    _value(LOGGING, "log-level", "HOROVOD_LOG_LEVEL", "level"),
    Knob(
        "with_timestamp",
        LOGGING,
        "HOROVOD_LOG_HIDE_TIME",
        ("--log-with-timestamp", "--no-log-hide-timestamp"),
        ("--log-without-timestamp", "--log-hide-timestamp"),
        "prefix each line of the core's log with the time (default: off)",
        _no,
    ),
)

HOLDS = {
    "HOROVOD_NUM_NCCL_STREAMS": ("1", "each rank gives NCCL one stream"),
    "HOROVOD_MPI_THREADS_DISABLE": ("0", "the core itself knows which thread may call MPI"),
}
"""Variable -> its fixed value in this implementation, and the reason."""


def without_effect(values: Mapping[str, str]) -> list[str]:
    """Return a sentence for each flag, by ``dest``, whose value differs from the fixed one."""
    fixed = [(knob, *HOLDS[knob.variable]) for knob in KNOBS if knob.dest in values and knob.variable in HOLDS]
    return [f"{knob.flags[0]} has no effect: {reason}" for knob, holds, reason in fixed if values[knob.dest] != holds]


def environment(values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for values by ``dest``; HVD_* variables of the same settings are emptied to not override."""
    env: dict[str, str] = {}
    rivals = {name: row.variables for row in SETTINGS for name in row.variables}
    for knob in KNOBS:
        if knob.dest in values:
            env |= {name: "" for name in rivals.get(knob.variable, ()) if name.startswith("HVD_")}
            env[knob.variable] = values[knob.dest]
    return env
