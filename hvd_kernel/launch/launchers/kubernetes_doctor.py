"""What is missing for a notebook's ranks on Kubernetes: ``%hvd doctor --on k8s``."""

from __future__ import annotations

import os

from hvd_kernel.diagnosis.machine import CheckResult
from hvd_kernel.errors import ClusterError, UsageError
from hvd_kernel.launch.launchers.kubernetes_job import Api
from hvd_kernel.settings import lookup

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_RIGHTS = (
    *(("batch", "jobs", verb) for verb in ("create", "get", "delete")),
    ("", "secrets", "create"),
    ("", "pods", "list"),
)


def examine(api: Api | None = None) -> list[CheckResult]:
    """Look at this pod's account, and at the settings."""
    image = lookup.value("HVD_ON_IMAGE", os.environ)
    fix = "HVD_ON_IMAGE names the image of the ranks' pods, which has hvd_kernel of this version in it"
    found = [CheckResult("image", bool(image), image or "none is named", "" if image else fix)]
    try:
        api = api or Api()
    except UsageError as error:
        return [CheckResult("Kubernetes", False, "not at hand", str(error)), *found]
    try:
        missing = [f"{verb} {what}" for group, what, verb in _RIGHTS if not _may(api, group, what, verb)]
    except ClusterError as error:
        return [CheckResult("Kubernetes", False, str(error), "look at the API server, and at this pod's token"), *found]
    fix = f"a Role in namespace {api.namespace} that allows it, bound to this pod's service account"
    said = f"namespace {api.namespace}; this pod's account may " + (f"not {', '.join(missing)}" if missing else "all")
    return [CheckResult("Kubernetes", not missing, said, fix if missing else ""), *found]


def _may(api: Api, group: str, what: str, verb: str) -> bool:
    asked = {"namespace": api.namespace, "group": group, "resource": what, "verb": verb}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    answer = api.ask("POST", _REVIEWS, review | {"spec": {"resourceAttributes": asked}})
    return bool(answer.get("status", {}).get("allowed"))
