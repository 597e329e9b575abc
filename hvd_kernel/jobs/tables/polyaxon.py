"""Fields of Polyaxon's polyaxonfile of 0.4 to 0.6, with the reasons why some are ignored.

Source: Polyaxon's page "Environment" of 0.6, and the schemas of 0.4 and 0.5 for the older spellings.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

MAX_WORKERS = 10_000

Amount = Annotated[float, msgspec.Meta(ge=0)] | str | None
Placing = Annotated[Any, msgspec.Meta(description="only the scheduler of Polyaxon's cluster uses it")]
Storage = Annotated[Any, msgspec.Meta(description="ranks see the files of the machine that they run on")]
Secret = Annotated[Any, msgspec.Meta(description="it names an object in Polyaxon's cluster")]
Restart = Annotated[Any, msgspec.Meta(description="a job is started once, and its status is the command's")]
Search = Annotated[Any, msgspec.Meta(description="this is one job, no search over several")]
Settings = Annotated[Any, msgspec.Meta(description="it is for TensorFlow's own distribution strategies")]
Sources = Annotated[Any, msgspec.Meta(description="ranks run in the folder in which the job is started")]
Tpu = Annotated[Any, msgspec.Meta(description="there are no TPUs here")]


class Amounts(msgspec.Struct, forbid_unknown_fields=True):
    """Minimum and maximum amount of a resource."""

    requests: Amount = None
    limits: Amount = None


class Gpus(msgspec.Struct, forbid_unknown_fields=True):
    """Minimum and maximum number of GPUs."""

    requests: Annotated[int, msgspec.Meta(ge=0)] | None = None
    limits: Annotated[int, msgspec.Meta(ge=0)] | None = None


class AskedResources(msgspec.Struct, forbid_unknown_fields=True):
    """Resources of the master or of a worker. Cores are numbers, memory is in mebibytes."""

    cpu: Amounts | None = None
    memory: Amounts | None = None
    gpu: Gpus | None = None
    tpu: Tpu = None


class Indexed(AskedResources, kw_only=True):
    """An entry of ``worker_resources``."""

    index: int


class Pod(msgspec.Struct, forbid_unknown_fields=True):
    """The master's or a worker's section."""

    resources: AskedResources | None = None
    node_selector: Placing = None
    affinity: Placing = None
    tolerations: Placing = None
    labels: Placing = None
    annotations: Placing = None
    service_account: Placing = None
    image_pull_secrets: Secret = None
    secret_refs: Secret = None
    config_map_refs: Secret = None
    configmap_refs: Secret = None
    max_restarts: Restart = None
    restart_policy: Restart = None
    ttl: Restart = None


class WorkerSection(Pod, kw_only=True):
    """The section of a single worker."""

    index: int


class Replicas(msgspec.Struct, forbid_unknown_fields=True):
    """Workers: their number, their default resources, and exceptions."""

    n_workers: Annotated[int, msgspec.Meta(ge=0, le=MAX_WORKERS)] = 0
    default_worker: Pod | None = None
    default_worker_resources: AskedResources | None = None
    worker: list[WorkerSection] | None = None
    worker_resources: list[Indexed] | None = None
    default_worker_config: Settings = None
    worker_configs: Settings = None
    default_worker_node_selector: Placing = None
    default_worker_node_selectors: Placing = None
    default_worker_affinity: Placing = None
    default_worker_tolerations: Placing = None
    worker_node_selectors: Placing = None
    worker_affinities: Placing = None
    worker_tolerations: Placing = None


class EnvironmentSection(Pod):
    """The section of the master, with that of the workers in several spellings."""

    replicas: Replicas | None = None
    horovod: Replicas | None = None
    tensorflow: Any = None
    pytorch: Any = None
    mxnet: Any = None
    default_worker_resources: AskedResources | None = None
    worker_resources: list[Indexed] | None = None
    persistence: Storage = None
    data_refs: Storage = None
    artifact_refs: Storage = None
    outputs: Storage = None
    log_level: Any = None
    env_vars: Any = None


class RunSection(msgspec.Struct, forbid_unknown_fields=True):
    """The section of the command."""

    cmd: str | list[str] = msgspec.field(default_factory=list)
    image: str = ""
    env_vars: Any = None
    build_steps: Sources = None
    git: Sources = None
    shell: Any = None


class Build(msgspec.Struct):
    """The section of the image."""

    image: str = ""
    env_vars: Any = None
    build_steps: Sources = None
    dockerfile: Sources = None


class Polyaxonfile(msgspec.Struct, forbid_unknown_fields=True):
    """A polyaxonfile."""

    environment: EnvironmentSection = msgspec.field(default_factory=EnvironmentSection)
    run: RunSection = msgspec.field(default_factory=RunSection)
    build: Build | None = None
    version: Any = None
    kind: str = "experiment"
    framework: str = ""
    name: str = ""
    declarations: dict[str, Any] | None = None
    params: dict[str, Any] | None = None
    hptuning: Search = None
    matrix: Search = None
    settings: Search = None
    backend: Any = None
    description: Any = None
    logging: Any = None
    project: Any = None
    tags: Any = None
    user: Any = None
    seed: Any = None
