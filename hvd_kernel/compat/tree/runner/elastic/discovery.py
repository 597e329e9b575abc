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
    """A script that prints lines ``host`` or ``host:slots``; ``slots``: of a host without a number.

    Subclasses may override ``_execute_discovery_script``, which returns the lines.
    """

    def __init__(self, discovery_script: str, slots: int) -> None:
        self._discovery_script = discovery_script
        self._default_slots = slots

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Run the script.

        Raises
        ------
        RuntimeError
            It fails.
        """
        lines = [line.strip() for line in self._execute_discovery_script().splitlines()]
        parts = [line.partition(":") for line in lines if line]
        return {host: int(slots) if slots else self._default_slots for host, _, slots in parts}

    def _execute_discovery_script(self) -> str:
        stdout = io.StringIO()
        status = safe_shell_exec.execute(self._discovery_script, stdout=stdout)
        if status:
            raise RuntimeError(f"Failed to execute discovery script: {self._discovery_script}. Exit code: {status}")
        return stdout.getvalue()


class FixedHosts(HostDiscovery):
    """Hosts that somebody sets."""

    def __init__(self, host_slots: Mapping[str, int]) -> None:
        self._host_slots = host_slots

    def find_available_hosts_and_slots(self) -> Mapping[str, int]:
        """Return them."""
        return self._host_slots

    def set(self, host_slots: Mapping[str, int]) -> None:
        """Replace them."""
        self._host_slots = host_slots
