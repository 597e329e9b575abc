"""Kubernetes as the engine of a notebook's ranks (cluster_engine.py): an Indexed Job with one rank per pod.

For a notebook in a pod of the same cluster, whose service account may create Jobs and Secrets. The job owns the Secret
with the invitation, which is mounted in the pods. Kubernetes replaces a lost pod by another one of its index.
``examine`` is ``%hvd doctor --on k8s``.
"""

from __future__ import annotations

import json
import os
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

from hvd_kernel.diagnosis.machine import CheckResult
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.jobs.manifests import GPU
from hvd_kernel.launch.launchers.cluster_engine import Invitation
from hvd_kernel.settings import lookup

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVER = "https://kubernetes.default.svc"
_LIMIT_S = 20.0
_POLL_S = 1.0
_KEEP_S = 60  # seconds for which Kubernetes keeps a finished job, so that it can be inspected
_MOUNT, _FILE = "/var/run/hvd", "invitation"
_INSTANCE = "app.kubernetes.io/instance"
_OUTSIDE = (
    "this notebook is not in a pod with a service account ({why}): pods must be able to call it, so run it in the "
    "cluster; from elsewhere `hvdrun job write` writes a job"
)


class Api:
    """A client of the API server with the permissions of this pod's account.

    Raises
    ------
    UsageError
        This process is not in a pod.
    """

    def __init__(self, server: str = SERVER, account: Path = ACCOUNT) -> None:
        self._server, self._account = server, account
        self.namespace = self._read("namespace")
        certificate = account / "ca.crt"
        self._context = ssl.create_default_context(cafile=str(certificate) if certificate.exists() else None)

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the response.

        Raises
        ------
        ClusterError
            The server refuses, with its message, or does not answer.
        """
        headers = {"Authorization": f"Bearer {self._read('token')}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._server}{path}", data, headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=_LIMIT_S, context=self._context) as response:  # noqa: S310
                content: dict[str, Any] = json.load(response)
                return content
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
    """The engine of one cluster.

    Parameters
    ----------
    np
        Number of ranks, each in a pod of its own.
    image
        Container image with the same version of hvd_kernel.
    cpus, gpus
        Resources of each pod.
    """

    name = "Kubernetes"
    hidden: tuple[str, ...] = ()

    def __init__(self, np: int, image: str, cpus: float, gpus: float, api: Api) -> None:
        if not image:
            raise UsageError("--on k8s: set HVD_ON_IMAGE to an image that contains hvd_kernel")
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
        """Run the job until its pods have ended, or until ``cancel``.

        Raises
        ------
        ClusterError
            Kubernetes refuses the job, or reports its failure.
        """
        manifest = job(self._job, self._np, self._image, self._cpus, self._gpus)
        created = self._api.request("POST", self._jobs, manifest)
        try:
            self._api.request("POST", f"{self._core}/secrets", secret(created, invitation))
            while not self._over.wait(_POLL_S) and not self._has_ended():
                pass
        finally:
            with suppress(ClusterError):
                self._api.request("DELETE", f"{self._jobs}/{self._job}", {"propagationPolicy": "Background"})

    def cancel(self) -> None:
        """End ``work``. Any thread."""
        self._over.set()

    def explain(self, error: BaseException) -> str:
        """Return the message of an error of ``work``."""
        return str(error)

    def shortage(self) -> str:
        """Return a sentence on how many pods run, and why the first other one waits."""
        try:
            pods = self._api.request("GET", f"{self._core}/pods?labelSelector={_INSTANCE}%3D{self._job}")["items"]
        except ClusterError as error:
            return f"{error}."
        running = sum(pod["status"].get("phase") == "Running" for pod in pods)
        reason = next((reason for pod in pods for reason in _waiting_reasons(pod["status"])), "")
        return f"{running} of {self._np} pods run{f'; {reason}' if reason else ''}."

    def _has_ended(self) -> bool:
        status = self._api.request("GET", f"{self._jobs}/{self._job}").get("status", {})
        conditions = {
            condition["type"]: condition
            for condition in status.get("conditions") or ()
            if condition["status"] == "True"
        }
        if failure := conditions.get("Failed"):
            raise ClusterError(f"job {self._job} has failed: {failure.get('message', failure.get('reason', ''))}")
        return "Complete" in conditions


def job(name: str, np: int, image: str, cpus: float, gpus: float) -> dict[str, Any]:
    """Return the Indexed Job. Pure.

    >>> job("hvd-1", 2, "me/train:1", 1, 0)["spec"]["completionMode"]
    'Indexed'
    """
    resources: dict[str, Any] = {"requests": {"cpu": f"{cpus:g}"}} | ({"limits": {GPU: int(gpus)}} if gpus else {})
    ranks = {
        "name": "ranks",
        "image": image,
        "command": ["python", "-P", "-m", "hvd_kernel.launch.launchers.pod"],
        "args": [f"{_MOUNT}/{_FILE}"],
        "resources": resources,
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
            "ttlSecondsAfterFinished": _KEEP_S,
            "template": {
                "metadata": {"labels": labels},
                "spec": {"restartPolicy": "Never", "containers": [ranks], "volumes": [volume]},
            },
        },
    }


def secret(created: Mapping[str, Any], invitation: Invitation) -> dict[str, Any]:
    """Return the Secret with the invitation, owned by the job that was created. Pure."""
    name, uid = created["metadata"]["name"], created["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "type": "Opaque",
        "stringData": {_FILE: json.dumps(asdict(invitation))},
    }


def _waiting_reasons(status: Mapping[str, Any]) -> list[str]:
    """Return why a pod waits."""
    unmet = [condition for condition in status.get("conditions") or () if condition["status"] == "False"]
    messages = [condition["message"] for condition in unmet if condition.get("message")]
    states = [container.get("state", {}).get("waiting") for container in status.get("containerStatuses") or ()]
    return messages + [f"{state['reason']}: {state.get('message', '')}".rstrip(": ") for state in states if state]


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error)


# The doctor's checks

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_PERMISSIONS = (
    *(("batch", "jobs", verb) for verb in ("create", "get", "delete")),
    ("", "secrets", "create"),
    ("", "pods", "list"),
)


def examine(api: Api | None = None) -> list[CheckResult]:
    """Check this pod's account and the settings for a notebook's ranks on Kubernetes."""
    image = lookup.value("HVD_ON_IMAGE", os.environ)
    fix = "set HVD_ON_IMAGE to an image that contains this version of hvd_kernel"
    image_check = CheckResult("image", bool(image), image or "none is named", "" if image else fix)
    try:
        api = api or Api()
    except UsageError as error:
        return [CheckResult("Kubernetes", False, "not at hand", str(error)), image_check]
    try:
        missing = [f"{verb} {kind}" for group, kind, verb in _PERMISSIONS if not _may(api, group, kind, verb)]
    except ClusterError as error:
        fix = "look at the API server, and at this pod's token"
        return [CheckResult("Kubernetes", False, str(error), fix), image_check]
    fix = f"a Role in namespace {api.namespace} that allows it, bound to this pod's service account"
    text = f"namespace {api.namespace}; this pod's account may " + (f"not {', '.join(missing)}" if missing else "all")
    return [CheckResult("Kubernetes", not missing, text, fix if missing else ""), image_check]


def _may(api: Api, group: str, kind: str, verb: str) -> bool:
    attributes = {"namespace": api.namespace, "group": group, "resource": kind, "verb": verb}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    response = api.request("POST", _REVIEWS, review | {"spec": {"resourceAttributes": attributes}})
    return bool(response.get("status", {}).get("allowed"))
