"""Kubernetes as the engine of a notebook's ranks (cluster_engine.py): an Indexed Job, each pod of which holds one rank.

For a notebook in a pod of the same cluster, whose service account may create Jobs and Secrets. The job owns the Secret
with the invitation, which pods have as a file. A pod that is lost is followed by another one of its index.
"""

from __future__ import annotations

import json
import secrets
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any

from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.jobs.writers.kubernetes import GPU
from hvd_kernel.launch.launchers.cluster_engine import Invitation

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVER = "https://kubernetes.default.svc"
_LIMIT_S = 20.0
_LOOK_S = 1.0
_KEPT_S = 60  # seconds that an ended job is there for who wants to look
_MOUNT, _FILE = "/var/run/hvd", "invitation"
_INSTANCE = "app.kubernetes.io/instance"
_OUTSIDE = (
    "this notebook is not in a pod with a service account ({why}): pods must be able to call it, so run it in the "
    "cluster; from elsewhere `hvdrun job write` writes a job"
)


class Api:
    """The API server, as this pod's account may use it.

    Raises
    ------
    UsageError
        This process is not in a pod.
    """

    def __init__(self, server: str = SERVER, account: Path = ACCOUNT) -> None:
        self._server, self._account = server, account
        self.namespace = self._read("namespace")
        trusted = account / "ca.crt"
        self._context = ssl.create_default_context(cafile=str(trusted) if trusted.exists() else None)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer.

        Raises
        ------
        ClusterError
            The server refuses, with its words, or does not answer.
        """
        headers = {"Authorization": f"Bearer {self._read('token')}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"{self._server}{path}", data, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(asked, timeout=_LIMIT_S, context=self._context) as answer:  # noqa: S310
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            raise ClusterError(f"Kubernetes refuses {method} {path}: {_message(error)}") from None
        except (OSError, ValueError) as error:
            raise ClusterError(f"Kubernetes does not answer {method} {path}: {error}") from None

    def _read(self, name: str) -> str:
        try:
            return (self._account / name).read_text().strip()
        except OSError as error:
            raise UsageError(_OUTSIDE.format(why=error)) from None


class PodJob:
    """The engine, for one cluster.

    Parameters
    ----------
    np
        Ranks, each in a pod of its own.
    image
        Has hvd_kernel in it, of the same version.
    cpus, gpus
        Resources of each pod.
    """

    name = "Kubernetes"
    hidden: tuple[str, ...] = ()

    def __init__(self, np: int, image: str, cpus: float, gpus: float, api: Api) -> None:
        if not image:
            raise UsageError("--on k8s: HVD_ON_IMAGE names the image of the ranks' pods, which has hvd_kernel in it")
        self.addresses: Sequence[str] = [socket.gethostbyname(socket.gethostname())]
        self._np, self._image, self._cpus, self._gpus, self._api = np, image, cpus, gpus, api
        self._job = f"hvd-{secrets.token_hex(4)}"
        self._over = Event()

    @property
    def _jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{self._api.namespace}/jobs"

    @property
    def _core(self) -> str:
        return f"/api/v1/namespaces/{self._api.namespace}"

    def work(self, invitation: Invitation) -> None:
        """Have the job, until its pods have ended, or ``cancel``.

        Raises
        ------
        ClusterError
            Kubernetes refuses it, or gives it up.
        """
        made = self._api.ask("POST", self._jobs, job(self._job, self._np, self._image, self._cpus, self._gpus))
        try:
            self._api.ask("POST", f"{self._core}/secrets", secret(made, invitation))
            while not self._over.wait(_LOOK_S) and not self._has_ended():
                pass
        finally:
            with suppress(ClusterError):
                self._api.ask("DELETE", f"{self._jobs}/{self._job}", {"propagationPolicy": "Background"})

    def cancel(self) -> None:
        """Have ``work`` end. Any thread."""
        self._over.set()

    def explain(self, error: BaseException) -> str:
        """Return what an error of ``work`` says."""
        return str(error)

    def shortage(self) -> str:
        """Say how many pods run, and what the first of the others waits for."""
        try:
            pods = self._api.ask("GET", f"{self._core}/pods?labelSelector={_INSTANCE}%3D{self._job}")["items"]
        except ClusterError as error:
            return f"{error}."
        running = sum(pod["status"].get("phase") == "Running" for pod in pods)
        why = next((said for pod in pods for said in _waits(pod["status"])), "")
        return f"{running} of {self._np} pods run{f'; {why}' if why else ''}."

    def _has_ended(self) -> bool:
        status = self._api.ask("GET", f"{self._jobs}/{self._job}").get("status", {})
        for each in status.get("conditions") or ():
            if each["type"] == "Failed" and each["status"] == "True":
                raise ClusterError(f"job {self._job} has failed: {each.get('message', each.get('reason', ''))}")
        return any(each["type"] == "Complete" and each["status"] == "True" for each in status.get("conditions") or ())


def job(name: str, np: int, image: str, cpus: float, gpus: float) -> dict[str, Any]:
    """Return the Indexed Job. Pure.

    >>> job("hvd-1", 2, "me/train:1", 1, 0)["spec"]["completionMode"]
    'Indexed'
    """
    asked: dict[str, Any] = {"requests": {"cpu": f"{cpus:g}"}} | ({"limits": {GPU: int(gpus)}} if gpus else {})
    ranks = {
        "name": "ranks",
        "image": image,
        "command": ["python", "-P", "-m", "hvd_kernel.launch.launchers.pod"],
        "args": [f"{_MOUNT}/{_FILE}"],
        "resources": asked,
        "volumeMounts": [{"name": "invitation", "mountPath": _MOUNT, "readOnly": True}],
    }
    volume = {"name": "invitation", "secret": {"secretName": name}}
    labels = {_INSTANCE: name, "app.kubernetes.io/managed-by": "hvd-kernel"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": np,
            "parallelism": np,
            "backoffLimit": 6 * np,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {
                "metadata": {"labels": labels},
                "spec": {"restartPolicy": "Never", "containers": [ranks], "volumes": [volume]},
            },
        },
    }


def secret(made: Mapping[str, Any], invitation: Invitation) -> dict[str, Any]:
    """Return the Secret with the invitation, which goes with the job that was made. Pure."""
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "type": "Opaque",
        "stringData": {_FILE: json.dumps(asdict(invitation))},
    }


def _waits(status: Mapping[str, Any]) -> list[str]:
    """Return what a pod waits for."""
    conditions = status.get("conditions") or ()
    said = [each["message"] for each in conditions if each["status"] == "False" and each.get("message")]
    states = [each.get("state", {}).get("waiting") for each in status.get("containerStatuses") or ()]
    return said + [f"{state['reason']}: {state.get('message', '')}".rstrip(": ") for state in states if state]


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error)
