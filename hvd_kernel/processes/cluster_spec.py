"""Cluster specification of a notebook: number of ranks, hosts, limits, and how MPI starts them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hvd_kernel.errors import ConfigError
from hvd_kernel.formatting.units import plural
from hvd_kernel.processes.limits import Limits
from hvd_kernel.settings import gpus as devices

ENGINES = ("ray", "spark", "k8s")
"""Engines that can start ranks in place of MPI."""


@dataclass(frozen=True)
class ClusterSpec:
    """The cluster that a notebook requests: number of ranks, hosts, and how MPI starts them."""

    n: int
    hosts: str = ""  # "a:2,b:2"; empty: this machine
    hostfile: str = ""  # path of a file of lines "host slots=N"
    mpi_args: tuple[str, ...] = ()  # passed to mpiexec unchanged
    # A failed start is detected at once; the timeout is for a busy machine, and does not make clusters differ.
    start_timeout_s: float = field(default=120.0, compare=False)
    gpus: str = ""  # auto, all, none or 0,1; empty: HVD_GPUS, else auto
    mps: str = ""  # 0: no private MPS daemon for ranks that share a device; empty: HVD_MPS
    limits: tuple[Limits, ...] = ()  # of each rank; (): no limits; enforced on this host
    on: str = ""  # the engine that starts them, one of ENGINES; empty: mpiexec

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"a cluster of {self.n} ranks cannot be started: request 1 or more, e.g. -np 4.")
        if self.hosts and self.hostfile:
            raise ConfigError("hosts and hostfile were both given: they say the same thing, keep one of them.")
        if self.limits and len(self.limits) != self.n:
            raise ConfigError(f"limits are for {plural(len(self.limits), 'rank')}, but the cluster has {self.n}.")
        if self.gpus:
            devices.checked(self.gpus)
        if self.mps not in {"", "0"}:
            raise ConfigError(f"mps={self.mps!r}: write '0' for no private MPS daemon, or leave it out.")
        if self.on not in {"", *ENGINES}:
            raise ConfigError(f"on={self.on!r}: ranks can be started on {', '.join(ENGINES)}, or by mpiexec (empty).")
        if self.start_timeout_s <= 0:
            raise ConfigError(f"start_timeout_s={self.start_timeout_s:g} must be above 0 seconds.")
