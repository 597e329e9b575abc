"""Options of the job writers: what a file needs besides the job. One table for all kinds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from hvd_kernel.jobs.spec import JobError

OPTION_KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"secret": ("job",), "shm_bytes": ("job", "mpijob", "swarm"), "port": ("job", "swarm"), "runtime": ("trainjob",)}
)
"""An option -> the kinds of file that say it."""


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a file says besides the job.

    Parameters
    ----------
    secret
        job: the value of HVD_SECRET_KEY, such as ``secrets.token_hex(32)``; empty: whoever submits makes the Secret.
    shm_bytes
        job, mpijob, swarm: the size of /dev/shm, through which ranks of one replica reach each other; 0: half of the
        replica's memory, or a gibibyte per rank where that is not said.
    port
        job, swarm: where the ranks meet; 0: that of the job's rendezvous, or 61440.
    runtime
        trainjob: the name of a ClusterTrainingRuntime with an mpi policy.
    """

    secret: str = ""
    shm_bytes: int = 0
    port: int = 0
    runtime: str = "deepspeed-distributed"

    def __post_init__(self) -> None:
        if self.shm_bytes < 0:
            raise JobError(f"shm_bytes: {self.shm_bytes} must be at least 0.")
        if not 0 <= self.port <= 65535:  # noqa: PLR2004 - ports
            raise JobError(f"port: {self.port} must be from 0 to 65535.")
