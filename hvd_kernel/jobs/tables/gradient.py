"""Flags of ``gradient experiments create|run multinode``, and the GPUs of Gradient's machine types.

Source: gradient-cli 1.x, gradient/cli/experiments.py; the pages on machine types of Paperspace and of AWS.
"""

from __future__ import annotations

import re

from hvd_kernel.jobs.flags import Flag, table

_IDS = "meaningful only at Paperspace"
_PULL = "ranks run in this environment, as the user who starts the job"
_CODE = "ranks run in the folder in which the job is started"
_FILES = "ranks see the files of the machine that they run on"
_GRPC = "an experiment of type MPI has no parameter servers"
_BOARD = "`%hvd track` and HVD_TRACK=tensorboard write its files"
_HERE = "the job is started on this machine, and its output is shown"

FLAGS = table(
    ("name", Flag("name")),
    ("projectId", Flag("projectId")),
    ("experimentType", Flag("type")),
    ("workerContainer", Flag("workerContainer")),
    ("workerMachineType", Flag("workerMachineType")),
    ("workerCommand", Flag("workerCommand")),
    ("workerCount", Flag("workerCount")),
    ("masterContainer", Flag("masterContainer")),
    ("masterMachineType", Flag("masterMachineType")),
    ("masterCommand", Flag("masterCommand")),
    ("masterCount", Flag("masterCount")),
    ("workingDirectory", Flag("workdir")),
    ("experimentEnv", Flag("experimentEnv")),
    ("optionsFile", Flag("file")),
    ("clusterId apiKey modelType modelPath tag tags", Flag("ignored", 1, _IDS)),
    ("workspace workspaceUrl workspaceRef workspaceUsername workspacePassword", Flag("ignored", 1, _CODE)),
    ("workspaceArchive ignoreFiles", Flag("ignored", 1, _CODE)),
    ("artifactDirectory datasetUri datasetName datasetAwsAccessKeyId", Flag("ignored", 1, _FILES)),
    ("datasetAwsSecretAccessKey datasetVersionId datasetEtag", Flag("ignored", 1, _FILES)),
    ("datasetVolumeKind datasetVolumeSize", Flag("ignored", 1, _FILES)),
    ("workerContainerUser workerRegistryUsername workerRegistryPassword workerRegistryUrl", Flag("ignored", 1, _PULL)),
    ("masterContainerUser masterRegistryUsername masterRegistryPassword masterRegistryUrl", Flag("ignored", 1, _PULL)),
    ("parameterServerContainer parameterServerMachineType parameterServerCommand", Flag("ignored", 1, _GRPC)),
    ("parameterServerCount parameterServerContainerUser parameterServerRegistryUsername", Flag("ignored", 1, _GRPC)),
    ("parameterServerRegistryPassword parameterServerRegistryUrl", Flag("ignored", 1, _GRPC)),
    ("ports", Flag("ignored", 1, "ranks choose their ports themselves")),
    ("tensorboard_set", Flag("ignored", 1, _BOARD)),
    ("tensorboard", Flag("ignored", 0, _BOARD)),
    ("isPreemptible vpc no-vpc no-logs", Flag("ignored", 0, _HERE)),
)
REQUIRED = (
    *("projectId", "experimentType", "workerContainer", "workerMachineType", "workerCommand", "workerCount"),
    *("masterContainer", "masterMachineType", "masterCommand", "masterCount"),
)
_AWS = {
    1: "p2.xlarge p3.2xlarge g3s.xlarge g3.4xlarge g4dn.xlarge g4dn.2xlarge g4dn.4xlarge g4dn.8xlarge g4dn.16xlarge",
    2: "g3.8xlarge",
    4: "p3.8xlarge g3.16xlarge g4dn.12xlarge",
    8: "p2.8xlarge p3.16xlarge p3dn.24xlarge p4d.24xlarge g4dn.metal",
    16: "p2.16xlarge",
}
_GPUS = {name: gpus for gpus, names in _AWS.items() for name in names.split()}
_PAPERSPACE = re.compile(r"(?:K80|GPU\+|[MPVAH]\d{3,4}|RTX\d{4})(?:-\d+G)?(?:x(?P<gpus>[1-8]))?", re.IGNORECASE)
_CPU_ONLY = re.compile(r"C\d{1,2}|[cmrt]\d[a-z]*\.\w+", re.ASCII)


def gpus_of(machine: str) -> int | None:
    """Return the number of GPUs of a machine type, ``gpus_of("p3.8xlarge") == 4``, or None if it is unknown."""
    if match := _PAPERSPACE.fullmatch(machine):
        return int(match["gpus"] or 1)
    return _GPUS.get(machine, 0 if _CPU_ONLY.fullmatch(machine) else None)
