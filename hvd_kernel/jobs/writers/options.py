"""Options of the job writers in addition to the job."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from hvd_kernel.jobs.spec import JobError

OPTION_KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"secret": ("job",), "shm_bytes": ("job", "mpijob", "swarm"), "port": ("job", "swarm"), "runtime": ("trainjob",)}
)
"""Option -> the kinds of file that use it."""


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a written file in addition to the job.

    Parameters
    ----------
    secret
        job: value of HVD_SECRET_KEY, such as ``secrets.token_hex(32)``; if empty, the user creates the Secret.
    shm_bytes
        job, mpijob, swarm: size of /dev/shm, for communication inside a replica; 0: half of the replica's memory, or a
        gibibyte per rank if the memory is unspecified.
    port
        job, swarm: port of the rendezvous; 0: that of the job's rendezvous, or 61440.
    runtime
        trainjob: name of a ClusterTrainingRuntime with an mpi policy.
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
