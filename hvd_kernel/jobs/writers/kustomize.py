"""A base of kustomize: the objects of an Indexed Job as files of a folder, and a NetworkPolicy.

An overlay sets namespace, images, labels and patches. It cannot set namePrefix and nameSuffix: kustomize does not
rename a pod's subdomain, by which the pods resolve each other.

Source: https://kubectl.docs.kubernetes.io/references/kustomize/kustomization/ ;
https://kubernetes.io/docs/concepts/services-networking/network-policies/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hvd_kernel.jobs import manifests
from hvd_kernel.jobs.spec import JobSpec
from hvd_kernel.jobs.writers import common
from hvd_kernel.jobs.writers.common import WriterOptions, Written
from hvd_kernel.jobs.writers.kubernetes import dumped, indexed_job, with_others

KUSTOMIZATION = "kustomization.yaml"
OTHERS = "objects.yaml"
"""Name of the file for the other objects of the job's own file."""
NAMES_STAY = "an overlay must not set namePrefix or nameSuffix: pods resolve each other by the name {name}"
_FILES = {
    "Secret": "secret.yaml",
    "Service": "service.yaml",
    "NetworkPolicy": "networkpolicy.yaml",
    "Job": "job.yaml",
}


def write(spec: JobSpec, options: WriterOptions) -> Written:
    """Return the files of a base; ``text`` has its objects, as ``kubectl kustomize`` prints them.

    Raises
    ------
    JobError
        See ``kubernetes.indexed_job``.
    """
    job = indexed_job(spec, options, "kubectl apply -k FOLDER")
    *others, indexed_job_object = job.objects
    policy = manifests.network_policy(job.name, job.label)
    if namespace := indexed_job_object["metadata"].get("namespace"):
        policy["metadata"]["namespace"] = namespace
    ours = [*others, policy, indexed_job_object]
    our_ids = {id(item) for item in ours}
    objects = with_others(spec, ours)
    by_file: dict[str, list[Mapping[str, Any]]] = {}
    for item in objects:
        is_ours = id(item) in our_ids
        by_file.setdefault(_FILES[item["kind"]] if is_ours else OTHERS, []).append(item)
    head = common.head(job.summary, job.how, [*job.losses, *job.notes, NAMES_STAY.format(name=job.name)])
    files = {KUSTOMIZATION: head + dumped([manifests.kustomization([*by_file])])}
    files |= {file: dumped(items) for file, items in by_file.items()}
    return Written(dumped(objects), common.on_one_line(job.losses), files)
