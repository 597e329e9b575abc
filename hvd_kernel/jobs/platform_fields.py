"""Settings that only a platform's scheduler understands, carried from file to file. Pure.

``FLAGS`` has the settings that batch systems and Kubernetes share, each with its flag or path on every platform. All
other settings of a file keep their place on the same platform, and are losses on the others.

Terms.
  setting   a ``PlatformField``: its name here, its value, and how its source spells it
  skeleton  the objects that our writers write for a job without settings; values equal to it are not recorded
  place     the path of a group of settings in an object, such as that of a pod's spec
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from hvd_kernel.jobs.spec import JobSpec, PlatformField

SETUP = "setup"
"""Name of a shell line that runs once before the ranks: ``module load cuda``."""
SHELL = "shell"
"""Name of the shell of a container's script with its options, if it is not ``/bin/sh -ec``."""
LAUNCHER = "launcher."
"""Prefix of settings of an MPIJob's launcher, which other platforms do not have."""
WORKER = "worker."
"""Prefix of settings of the process that an MPIJob's workers run beside the ranks, such as sshd."""
GPU_TYPE = "gpu_type"
"""Name of the model of a node's GPUs: ``a100``."""
GPU_RESOURCE = "gpu_resource"
"""Name of the Kubernetes resource of the GPUs, if it is not ``nvidia.com/gpu``."""
OBJECTS = "objects"
"""Name of an object of Kubernetes that is in a job's file besides it: a ConfigMap, a claim of a volume."""
LAUNCHER_IMAGE = f"{LAUNCHER}container.image"
TITLES = {
    "job": "an Indexed Job",
    "mpijob": "an MPIJob",
    "trainjob": "a TrainJob",
    "swarm": "a swarm",
    "slurm": "Slurm",
    "lsf": "LSF",
}
NOT_CARRIED = "{source} is left out: {target} has no counterpart"
"""Sentence about a setting of the source that a written file does not have; ``target`` is one of ``TITLES``."""

# Durations and patterns of output files

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_SLURM_TIME = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,7})(?::([0-9]{1,7}))?(?::([0-9]{1,7}))?", re.ASCII)
_LSF_TIME = re.compile(r"(?:([0-9]{1,6}):)?([0-9]{1,8})", re.ASCII)
_PBS_TIME = re.compile(r"(?:(?:([0-9]{1,6}):)?([0-9]{1,6}):)?([0-9]{1,8})", re.ASCII)
_PATTERN = re.compile(r"%[0-9]*.?")


def _slurm_seconds(text: str) -> int | None:
    """Return the seconds of Slurm's ``minutes``, ``hours:minutes:seconds`` or ``days-hours:minutes``."""
    match = _SLURM_TIME.fullmatch(text)
    if match is None:
        return None
    days, *parts = (None if part is None else int(part) for part in match.groups())
    first, second, third = parts
    if days is not None:
        seconds = days * _DAY + (first or 0) * _HOUR + (second or 0) * _MINUTE + (third or 0)
    elif third is not None:
        seconds = (first or 0) * _HOUR + (second or 0) * _MINUTE + third
    else:
        seconds = (first or 0) * _MINUTE + (second or 0)
    return seconds or None  # 0: no limit


def _slurm_time(seconds: Any) -> str | None:
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 1:
        return None
    days, rest = divmod(seconds, _DAY)
    clock = f"{rest // _HOUR:02}:{rest % _HOUR // _MINUTE:02}:{rest % _MINUTE:02}"
    return f"{days}-{clock}" if days else clock


def _lsf_seconds(text: str) -> int | None:
    match = _LSF_TIME.fullmatch(text)
    return None if match is None else (int(match[1] or 0) * _HOUR + int(match[2]) * _MINUTE) or None


def _lsf_time(seconds: Any) -> str | None:
    if not isinstance(seconds, int) or isinstance(seconds, bool) or seconds < 1 or seconds % _MINUTE:
        return None
    return f"{seconds // _HOUR}:{seconds % _HOUR // _MINUTE:02}"


def _pbs_seconds(text: str) -> int | None:
    match = _PBS_TIME.fullmatch(text)
    return None if match is None else int(match[1] or 0) * _HOUR + int(match[2] or 0) * _MINUTE + int(match[3])


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _true(value: Any) -> bool | None:
    return True if value is True else None


def _either(value: Any) -> str | bool | None:
    return value if isinstance(value, str) or value is True else None


def _job_number(old: str, new: str) -> Callable[[Any], str | None]:
    """Return a function that converts a file name with the number of the job; None if it has another pattern."""

    def convert(value: Any) -> str | None:
        if not isinstance(value, str) or any(pattern != old for pattern in _PATTERN.findall(value)):
            return None
        return value.replace(old, new)

    return convert


class Spelling(NamedTuple):
    """A setting on a platform: its flag or path, the text of a value, and the value of a text; None if impossible."""

    at: str
    write: Callable[[Any], Any] = _text
    read: Callable[[Any], Any] = _text


def _output(slurm: str, lsf: str, pbs: str = "") -> dict[str, Spelling]:
    to_lsf, to_slurm = _job_number("%j", "%J"), _job_number("%J", "%j")
    rows = {"slurm": Spelling(slurm), "lsf": Spelling(lsf, to_lsf, to_slurm)}
    return rows | ({"pbs": Spelling(pbs), "cobalt": Spelling(pbs)} if pbs else {})


def _alike(**flags: str) -> dict[str, Spelling]:
    return {kind: Spelling(flag) for kind, flag in flags.items()}


FLAGS: Mapping[str, Mapping[str, Spelling]] = MappingProxyType(
    {
        "account": _alike(slurm="account", lsf="P", pbs="A", cobalt="A"),
        "queue": _alike(slurm="partition", lsf="q", pbs="q", cobalt="q"),
        "reservation": _alike(slurm="reservation", lsf="U"),
        "comment": _alike(slurm="comment", lsf="Jd"),
        "mail_user": _alike(slurm="mail-user", lsf="u", pbs="M", cobalt="M"),
        "output": _output("output", "o", "o"),
        "error": _output("error", "e", "e"),
        "input": _output("input", "i"),
        "exclusive": {"slurm": Spelling("exclusive", _either, _either), "lsf": Spelling("x", _true, _true)},
        "hold": {"slurm": Spelling("hold", _true, _true), "lsf": Spelling("H", _true, _true)},
        "requeue": {"slurm": Spelling("requeue", _true, _true), "lsf": Spelling("r", _true, _true)},
        "time_limit_s": {
            "slurm": Spelling("time", _slurm_time, _slurm_seconds),
            "lsf": Spelling("W", _lsf_time, _lsf_seconds),
            "pbs": Spelling("walltime", read=_pbs_seconds),
            "cobalt": Spelling("t", read=lambda text: _lsf_seconds(text) if ":" not in text else _pbs_seconds(text)),
            "job": Spelling("spec.activeDeadlineSeconds", _whole, _whole),
            "mpijob": Spelling("spec.runPolicy.activeDeadlineSeconds", _whole, _whole),
            "trainjob": Spelling("spec.activeDeadlineSeconds", _whole, _whole),
        },
        "suspend": {
            "job": Spelling("spec.suspend", bool, bool),
            "mpijob": Spelling("spec.runPolicy.suspend", bool, bool),
            "trainjob": Spelling("spec.suspend", bool, bool),
        },
        "ttl_s": {
            "job": Spelling("spec.ttlSecondsAfterFinished", int, int),
            "mpijob": Spelling("spec.runPolicy.ttlSecondsAfterFinished", int, int),
        },
        "backoff_limit": {
            "job": Spelling("spec.backoffLimit", int, int),
            "mpijob": Spelling("spec.runPolicy.backoffLimit", int, int),
        },
        "restart_policy": {
            "job": Spelling("spec.template.spec.restartPolicy"),
            "mpijob": Spelling("spec.mpiReplicaSpecs.Worker.restartPolicy"),
        },
        f"{LAUNCHER}restart_policy": {"mpijob": Spelling("spec.mpiReplicaSpecs.Launcher.restartPolicy")},
    }
)
"""Name -> platform -> spelling. Batch systems have flags without dashes, Kubernetes paths in the object."""


def of_flag(kind: str, flag: str, value: str | bool, source: str, ignored: str = "") -> PlatformField:
    """Return the setting of a batch system's flag; one without a row in ``FLAGS`` is named ``KIND.FLAG``."""
    for name, spellings in FLAGS.items():
        spelling = spellings.get(kind)
        if spelling is not None and spelling.at == flag:
            read = spelling.read(value)
            if read is not None:
                return PlatformField(name, read, source, ignored)
    return PlatformField(f"{kind}.{flag}", value, source, ignored)


def flags(spec: JobSpec, kind: str) -> Iterator[tuple[str, str | bool, str]]:
    """Yield flag, value and name of each setting of a job that a batch system has."""
    for field in spec.platform_fields:
        if field.name.startswith(f"{kind}."):
            yield field.name.removeprefix(f"{kind}."), field.value, field.name
        elif (spelling := FLAGS.get(field.name, {}).get(kind)) is not None:
            value = spelling.write(field.value)
            if value is not None:
                yield spelling.at, value, field.name


# Objects of Kubernetes and of a swarm

_POD_OF = {
    "job": ("spec", "template"),
    "worker": ("spec", "mpiReplicaSpecs", "Worker", "template"),
    "launcher": ("spec", "mpiReplicaSpecs", "Launcher", "template"),
}
ObjectPath = tuple[str | int, ...]
FIRST = ("containers", 0)


def _pod_places(prefix: str, pod: ObjectPath) -> dict[str, ObjectPath]:
    return {
        f"{prefix}container": (*pod, "spec", *FIRST),
        f"{prefix}pod": (*pod, "spec"),
        f"{prefix}pod_metadata": (*pod, "metadata"),
    }


PLACES: Mapping[str, Mapping[str, ObjectPath]] = MappingProxyType(
    {
        "job": {"metadata": ("metadata",), **_pod_places("", _POD_OF["job"]), "job": ("spec",)},
        "mpijob": {
            "metadata": ("metadata",),
            **_pod_places("", _POD_OF["worker"]),
            **_pod_places(LAUNCHER, _POD_OF["launcher"]),
            "mpijob.runPolicy": ("spec", "runPolicy"),
            "mpijob": ("spec",),
        },
        "trainjob": {"metadata": ("metadata",), "container": ("spec", "trainer"), "trainjob": ("spec",)},
        "swarm": {
            "swarm.deploy": ("services", 0, "deploy"),
            "swarm.service": ("services", 0),
            "swarm": (),
        },
    }
)
"""Platform -> name of a group of settings -> its path, inner ones first; a swarm's service is the first one."""
_TRAINER_KEYS = {"env", "resources"}
_RESOURCES_KEY = {"trainjob": "resourcesPerNode"}
_LAUNCHED = {"env", "envFrom"}
"""Keys of a container that reach the ranks of an MPIJob through its launcher."""
_BOTH = {"volumeMounts", "securityContext", "imagePullPolicy"}
"""Keys of a container that both pods of an MPIJob get from a platform with one kind of pod."""
_OPERATOR_ONLY = (
    *("mpijob.sshAuthMountPath", "mpijob.launcherCreationPolicy", "mpijob.mpiImplementation", "trainjob.runtimeRef"),
    *(
        "worker.command",
        "worker.args",
        "worker.env",
        "worker.envFrom",
        "trainjob.managedBy",
        "mpijob.runPolicy.managedBy",
    ),
    "container.name",
)
"""Settings of an operator's own machinery (sshd, its runtime, its controller): other platforms lose nothing."""
_STATE = {"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"}
_STATE_LABELS = re.compile(r"batch\.kubernetes\.io/.*|controller-uid|job-name|kubectl\.kubernetes\.io/last-applied-.*")


def difference(value: Any, skeleton: Any) -> Any:
    """Return the part of a value that the skeleton lacks, or None."""
    if value == skeleton:
        return None
    if isinstance(value, dict) and isinstance(skeleton, dict):
        parts = {key: difference(item, skeleton.get(key)) for key, item in value.items()}
        return {key: part for key, part in parts.items() if part is not None} or None
    if isinstance(value, list) and isinstance(skeleton, list):
        return [item for item in value if item not in skeleton] or None
    return value


def combined(value: Any, addition: Any) -> Any:
    """Return a value with an addition: keys and items are added, any other value is replaced."""
    if isinstance(value, dict) and isinstance(addition, dict):
        return value | {key: combined(value.get(key), item) for key, item in addition.items()}
    if isinstance(value, list) and isinstance(addition, list):
        return value + addition
    return copy.deepcopy(addition)


def at(value: Any, path: ObjectPath) -> Any:
    """Return the value at a path, or None. An index selects an item, of an object the first key."""
    for step in path:
        if isinstance(value, dict):
            value = value.get(step) if isinstance(step, str) else next(iter(value.values()), None)
        elif isinstance(value, list):
            value = value[step] if isinstance(step, int) and step < len(value) else None
        else:
            return None
    return value


def settings_of(
    kind: str,
    value: Any,
    skeleton: Any,
    read: Mapping[str, Iterable[str]],
    ignored: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[PlatformField]:
    """Yield the settings of an object that our skeleton lacks.

    Parameters
    ----------
    kind
        Platform of the object.
    value, skeleton
        The object of the file, and ours for the same job.
    read
        Group of settings -> the keys that the reader itself reads.
    ignored
        Name of a setting -> why it has no effect without its platform.
    """
    places = PLACES[kind]
    nested = {path[:length] for path in places.values() for length in range(1, len(path) + 1)}
    by_path = {spelling.at: (name, spelling) for name, row in FLAGS.items() if (spelling := row.get(kind))}
    for group, path in places.items():
        part = at(value, path)
        for key, item in part.items() if isinstance(part, dict) else ():
            if (*path, key) in nested or key in read.get(group, ()) or (group.endswith("metadata") and key in _STATE):
                continue
            rest = difference(_without_state(group, key, item), at(skeleton, (*path, key)))
            if rest in ({}, [], None):
                continue
            source = ".".join(map(str, (*path, key)))
            row = by_path.get(source)
            shared = row[1].read(rest) if row else None
            name = f"{group}.{key}" if row is None or shared is None else row[0]
            yield PlatformField(name, rest if shared is None else shared, source, ignored.get(name, ""))
    for source, (name, spelling) in by_path.items():
        path = tuple(source.split("."))
        if path[:-1] in nested and path[:-1] not in places.values():
            rest = difference(at(value, path), at(skeleton, path))
            if rest is not None:
                yield PlatformField(name, spelling.read(rest), source)


def _without_state(group: str, key: str, value: Any) -> Any:
    if not group.endswith("metadata") or key not in {"labels", "annotations"} or not isinstance(value, dict):
        return value
    return {name: text for name, text in value.items() if not _STATE_LABELS.fullmatch(name)}


def paths(kind: str, field: PlatformField, source_kind: str, *, workers: bool = True) -> list[ObjectPath]:
    """Return the paths of a setting in the object of a platform; several if both pods of an MPIJob have it.

    ``workers`` is False for an MPIJob whose only pod is the launcher's.
    """
    spelling = FLAGS.get(field.name, {}).get(kind)
    if spelling is not None:
        places = [tuple[str | int, ...](spelling.at.split("."))] if spelling.write(field.value) is not None else []
    elif kind == "mpijob" and field.name.startswith(WORKER):
        places = [(*PLACES[kind]["container"], field.name.removeprefix(WORKER))]
    else:
        places = _in_groups(kind, field.name, source_kind)
    return (
        places if workers else [tuple("Launcher" if step == "Worker" else step for step in path) for path in places[:1]]
    )


def _in_groups(kind: str, name: str, source_kind: str) -> list[ObjectPath]:
    group, _, key = name.rpartition(".")
    place = PLACES.get(kind, {}).get(group)
    if place is None or (kind == "trainjob" and group == "container" and key not in _TRAINER_KEYS):
        return []
    single = (*place, _RESOURCES_KEY.get(kind, key) if key == "resources" else key)
    of_launcher = PLACES[kind].get(f"{LAUNCHER}{group}")
    if of_launcher is None:
        return [single]
    if group == "container" and key in _LAUNCHED:
        return [(*of_launcher, key)]
    both = source_kind != "mpijob" and (group != "container" or key in _BOTH)
    return [single, (*of_launcher, key)] if both else [single]


def put(value: Any, path: ObjectPath, addition: Any) -> None:
    """Add to the value at a path of an object, whose missing parents are created."""
    *parents, last = path
    for step in parents:
        if isinstance(value, dict):
            value = value.setdefault(step if isinstance(step, str) else next(iter(value)), {})
        else:
            value = value[step]
    value[last] = combined(value.get(last), addition)


def is_lost(spec: JobSpec, field: PlatformField) -> bool:
    """Return whether a platform without this setting runs the job in another way."""
    if field.name == SHELL or field.name.startswith(_OPERATOR_ONLY):
        return False
    if not field.name.startswith(LAUNCHER):
        return True
    leads = spec.replicas[0].role == "launcher"  # its pod has ranks
    same = any(
        (other.name, other.value) == (field.name.removeprefix(LAUNCHER), field.value) for other in spec.platform_fields
    )
    return leads and not same


def losses(spec: JobSpec, kind: str, carried: Iterable[PlatformField]) -> list[str]:
    """Return a sentence for each setting of a job that its file for a platform does not have."""
    kept = {id(field) for field in carried}
    sources = [
        field.source or field.name for field in spec.platform_fields if id(field) not in kept and is_lost(spec, field)
    ]
    return [NOT_CARRIED.format(source=source, target=TITLES[kind]) for source in dict.fromkeys(sources)]


def values(spec: JobSpec, name: str) -> list[Any]:
    """Return the values of the settings of a name."""
    return [field.value for field in spec.platform_fields if field.name == name]


def setup(spec: JobSpec) -> list[str]:
    """Return the shell lines that run once before the ranks."""
    return [str(value) for value in values(spec, SETUP)]


def fields(spec: JobSpec, names: Sequence[str]) -> list[PlatformField]:
    """Return the settings with one of the names."""
    return [field for field in spec.platform_fields if field.name in names]
