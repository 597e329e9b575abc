"""``horovod.runner.common.util.settings`` and ``horovod.runner.elastic.settings``: parameters of a job to start."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass
class BaseSettings:
    """Parameters of static and elastic jobs."""

    num_proc: int | None = None
    verbose: int = 0
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    extra_mpi_args: str | None = None
    tcp_flag: bool | None = None
    binding_args: str | None = None
    key: bytes | None = None
    start_timeout: Any = None
    output_filename: str | None = None
    run_func_mode: bool | None = None
    nics: Any = None
    elastic: bool = False
    prefix_output_with_timestamp: bool = False


class Settings(BaseSettings):
    """Parameters of a job on a fixed list of hosts, for ``gloo_run`` and ``mpi_run``."""

    def __init__(self, hosts: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hosts = hosts


class ElasticSettings(BaseSettings):
    """Parameters of a job whose hosts join and leave, for ``gloo_run_elastic``."""

    def __init__(  # noqa: PLR0917 - Horovod's signature
        self,
        discovery: Any,
        min_num_proc: int | None,
        max_num_proc: int | None,
        elastic_timeout: float | None,
        reset_limit: int | None,
        cooldown_range: Sequence[int] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(elastic=True, **kwargs)
        self.discovery = discovery
        self.min_num_proc = _newer("min_np", min_np, "min_num_proc", min_num_proc)
        self.max_num_proc = _newer("max_np", max_np, "max_num_proc", max_num_proc)
        self.elastic_timeout = elastic_timeout
        self.reset_limit = reset_limit
        self.cooldown_range = cooldown_range

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the discovery, as Horovod does: it belongs to this process."""
        return vars(self) | {"discovery": None}


def _newer(old: str, old_value: int | None, new: str, value: int | None) -> int | None:
    if old_value is None:
        return value
    warnings.warn(f"{old} is deprecated, use {new} instead", DeprecationWarning, stacklevel=3)
    return old_value
