"""Settings of the elastic driver: sizes, limits and times of one job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DriverSettings:
    """What the driver goes by. Times are seconds."""

    np: int
    """Slots that must be there before the first start."""
    min_np: int
    """With fewer slots than this nobody trains: the job waits."""
    max_np: int | None = None
    """Slots beyond this stay empty; None: all are used."""
    elastic_timeout_s: float = 600.0
    """Longest wait for enough slots."""
    start_timeout_s: float = 600.0
    """Longest wait for a new worker to come to hvd.init()."""
    patience_s: float = 600.0
    """Longest wait for a worker to come to a reset to which others have come."""
    release_s: float = 2.0
    """A failure that a member has not noticed by then, as it waits to meet the others, is told to it."""
    reset_limit: int | None = None
    """So many resets may be; one more ends the job. New hosts alone ask for none then."""
    max_restarts: int | None = None
    """So many workers may fail; one more ends the job."""
    cooldown_s: tuple[float, float] | None = None
    """Least and most seconds that a slot or host is left out after a failure; None: for ever."""
    slot_failures: int | None = None
    """A slot is left out after so many; None: 1 with a cooldown, else 3."""
    host_failures: int = 2
    """A host is left out while so many of its slots are; all of them, where it has fewer."""
    last_call_s: float = 1.0
    """From a change of the hosts until it counts: what changes meanwhile is one change with it."""
    leave_s: float = 30.0
    """A worker that was told to leave may take so long for its cleanup."""
    end_grace_s: float = 5.0
    """From SIGTERM to SIGKILL."""
    checkpoint: bool = False
    """Workers take their state from files: a job that has lost all of them goes on with fresh ones. They may say so."""
    seed: int = 0
    """Of the random part of cooldowns."""
