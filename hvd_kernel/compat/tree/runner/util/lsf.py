"""``horovod.runner.util.lsf``: what LSF says of a job. What only IBM's CSM knows is refused."""

from __future__ import annotations

import os
from typing import Any, NoReturn

from hvd_kernel.compat import plumbing


class LSFUtils:
    """Functions without an object."""

    @staticmethod
    def using_lsf() -> bool:
        """Tell whether this runs in an LSF job."""
        return "LSB_JOBID" in os.environ

    @staticmethod
    def get_compute_hosts() -> list[str]:
        """Return the job's hosts, as LSB_MCPU_HOSTS has them."""
        return sorted(_slots())

    @staticmethod
    def get_num_processes() -> int:
        """Return the number of slots on all of them."""
        return sum(_slots().values())

    @staticmethod
    def get_allocation_info() -> dict[str, Any]:
        """Refuse."""
        _refuse("get_allocation_info")

    @staticmethod
    def get_num_cores() -> int:
        """Refuse."""
        _refuse("get_num_cores")

    @staticmethod
    def get_num_gpus() -> int:
        """Refuse."""
        _refuse("get_num_gpus")

    @staticmethod
    def get_num_threads() -> int:
        """Refuse."""
        _refuse("get_num_threads")


def _refuse(name: str) -> NoReturn:
    raise plumbing.error("horovod.runner.util.lsf.LSFUtils", name, plumbing.LSF)


def _slots() -> dict[str, int]:
    words = os.environ.get("LSB_MCPU_HOSTS", "").split()
    return {host: int(slots) for host, slots in zip(words[::2], words[1::2], strict=True)}
