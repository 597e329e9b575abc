"""``horovod.runner.elastic.settings``: how an elastic job is to be started, for ``gloo_run_elastic``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from hvd_kernel.compat.tree.runner.common.util.settings import BaseSettings


class ElasticSettings(BaseSettings):
    """A job whose hosts come and go."""

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
        """Leave the discovery out, as Horovod does: it belongs to this process."""
        return vars(self) | {"discovery": None}


def _newer(old: str, given: int | None, new: str, value: int | None) -> int | None:
    if given is None:
        return value
    warnings.warn(f"{old} is deprecated, use {new} instead", DeprecationWarning, stacklevel=3)
    return given
