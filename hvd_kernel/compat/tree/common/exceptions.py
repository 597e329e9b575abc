"""``horovod.common.exceptions``."""

from __future__ import annotations

from hvd_kernel.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Return Horovod's sentence for a framework that is not the one it was compiled against."""
    return f"Framework {name} installed with version {installed_version} but found version {version}."


class HorovodVersionMismatchError(ImportError):
    """For programs that catch it: we are compiled against no framework, so it is never raised."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name, self.version, self.installed_version = name, version, installed_version
