"""Kubernetes' discovery for an elastic job: ready pods of a service, by DNS or by the API server.

DNS needs no rights, and knows addresses: those of a headless service (``clusterIP: None``) are its ready pods'. The API
knows names too, which outlive an address where the pods are a StatefulSet's.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_kernel.errors import ConfigError

_LIMIT_S = 20.0
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NOT_FOUND = 404

Addresses = Callable[[str], Iterable[str]]


def addresses(name: str) -> list[str]:
    """Return all addresses of a name.

    Raises
    ------
    ConfigError
        The name server does not answer.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}:
            return []  # a headless service without a ready pod has no address
        raise ConfigError(f"{name}: {error}.") from None
    return [str(address[0]) for *_, address in found]


@dataclass(frozen=True)
class KubernetesDns:
    """Addresses of a headless service's ready pods, in their numeric order: name servers shuffle them.

    Parameters
    ----------
    service
        Its name, as ``workers`` or ``workers.namespace.svc.cluster.local``.
    slots
        Of each pod.
    lookup
        Returns the addresses of a name.

    Examples
    --------
    >>> KubernetesDns("workers", 2, lambda name: ["10.0.0.10", "10.0.0.9"]).find_available_hosts_and_slots()
    {'10.0.0.9': 2, '10.0.0.10': 2}
    """

    service: str
    slots: int = 1
    lookup: Addresses = addresses

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Ask the name server.

        Raises
        ------
        ConfigError
            It does not answer.
        """
        found = {ipaddress.ip_address(address) for address in self.lookup(self.service)}
        in_order = sorted(found, key=lambda address: (address.version, int(address)))
        return {str(address): self.slots for address in in_order}


@dataclass(frozen=True)
class KubernetesEndpoints:
    """Ready pods of a service as the API server names them; the pod's account may ``get`` endpoints.

    Parameters
    ----------
    service
        Its name.
    slots
        Of each pod.
    namespace
        Its namespace; empty: this pod's.
    server
        The API server.
    account
        Folder with the token, namespace and certificate of this pod's account.
    """

    service: str
    slots: int = 1
    namespace: str = ""
    server: str = "https://kubernetes.default.svc"
    account: Path = _ACCOUNT

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Ask the API server.

        Raises
        ------
        ConfigError
            It does not answer, or refuses.
        """
        namespace = self.namespace or self._read("namespace")
        where = f"{self.server}/api/v1/namespaces/{namespace}/endpoints/{self.service}"
        asked = urllib.request.Request(where, headers={"Authorization": f"Bearer {self._read('token')}"})  # noqa: S310
        trusted = self.account / "ca.crt"
        context = ssl.create_default_context(cafile=str(trusted) if trusted.exists() else None)
        try:
            with urllib.request.urlopen(asked, timeout=_LIMIT_S, context=context) as answer:  # noqa: S310
                return pods(json.load(answer), self.slots)
        except urllib.error.HTTPError as error:
            if error.code == _NOT_FOUND:
                raise ConfigError(f"namespace {namespace} has no endpoints {self.service}.") from None
            raise ConfigError(f"{where}: {error}; check that this pod's service account may read endpoints.") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{where}: {error}.") from None

    def _read(self, name: str) -> str:
        try:
            return (self.account / name).read_text().strip()
        except OSError as error:
            raise ConfigError(f"this process is not in a pod with a service account: {error}.") from None


def pods(endpoints: dict[str, Any], slots: int) -> dict[str, int]:
    """Return the ready pods of an Endpoints object: by name where the service gives them names, else by address.

    >>> pods({"metadata": {"name": "w"}, "subsets": [{"addresses": [{"ip": "10.0.0.9", "hostname": "w-0"}]}]}, 2)
    {'w-0.w': 2}
    """
    service = endpoints["metadata"]["name"]
    ready = [each for subset in endpoints.get("subsets") or () for each in subset.get("addresses") or ()]
    names = [f"{each['hostname']}.{service}" if each.get("hostname") else each["ip"] for each in ready]
    return dict.fromkeys(sorted(names, key=_ordinal), slots)


def _ordinal(name: str) -> tuple[str, int, str]:
    """Order w-10 after w-9, and addresses by their text."""
    base, _, number = name.partition(".")[0].rpartition("-")
    return (base, int(number), name) if number.isdecimal() and base else (name, 0, name)
