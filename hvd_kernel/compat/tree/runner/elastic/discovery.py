"""``horovod.runner.elastic.discovery``: who says which hosts there are."""

from __future__ import annotations

import io
from collections.abc import Mapping

from hvd_kernel.compat.tree.runner.common.util import safe_shell_exec


class HostDiscovery:
    """What is asked for hosts; derived classes answer."""

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        """Return the slots of each host that there is."""
        raise NotImplementedError


class HostDiscoveryScript(HostDiscovery):
    """A script that prints lines ``host`` or ``host:slots``."""

    def __init__(self, discovery_script: str, default_slots: int) -> None:
        self._script = discovery_script
        self._slots = default_slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Run it.

        Raises
        ------
        RuntimeError
            It fails.
        """
        said = io.StringIO()
        status = safe_shell_exec.execute(self._script, stdout=said)
        if status:
            raise RuntimeError(f"Failed to execute discovery script: {self._script}. Exit code: {status}")
        parts = [line.strip().partition(":") for line in said.getvalue().splitlines() if line.strip()]
        return {host: int(slots) if slots else self._slots for host, _, slots in parts}


class FixedHosts(HostDiscovery):
    """Hosts that somebody sets."""

    def __init__(self, host_slots: Mapping[str, int]) -> None:
        self._hosts = host_slots

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        """Return them."""
        return self._hosts

    def set(self, host_slots: Mapping[str, int]) -> None:
        """Replace them."""
        self._hosts = host_slots
