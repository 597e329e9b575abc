"""Slurm allocation reader: the environment of a batch script, of salloc's shell or of an interactive step.

Resources of the job become requests, as Slurm enforces the limits. Tested with Slurm 22.05:
  * A batch script has SLURM_PROCID=0 and no SLURM_STEP_ID. It is not a task.
  * salloc's shell runs on no node: SLURM_CPUS_ON_NODE is not set, nor, with --gres, any variable for GPUs.
  * In a step the variables of tasks describe the step, those of nodes and cores describe the job. An interactive step
    (salloc with use_interactive_step) represents the whole job.
  * Without --ntasks SLURM_NTASKS is not set, and SLURM_TASKS_PER_NODE has the number of cores.
  * A heterogeneous job has separate variables per component, with the suffix _HET_GROUP_N; in a batch script the
    variables of the first component are also set without the suffix.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product

from hvd_kernel.formatting.units import plural
from hvd_kernel.jobs.spec import MAX_RANKS, Bounds, JobError, JobSpec, Replica, Resources, size

Env = Mapping[str, str]

_INTERACTIVE = str(2**32 - 6)
_HET = (
    ("SLURM_HET_SIZE", "_HET_GROUP_", "--het-group"),
    ("SLURM_PACK_SIZE", "_PACK_GROUP_", "--pack-group"),  # up to Slurm 20.02
)
"""Number of components of a heterogeneous job, the mark of their variables, and the option of srun that selects one."""
_OF_THE_JOB = (  # in a step
    *("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"),
    "SLURM_JOB_GPUS",
)
_ITEM = r"(?:[^\[\],\s]|\[[^\[\]]*\])+"
_LIST = re.compile(rf"{_ITEM}(?:,{_ITEM})*")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
_TIMES = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", re.ASCII)
_GPUS = re.compile(r"(?:[\w.-]+:)*([0-9]{1,6})", re.ASCII)
_A_STEP_KNOWS = (
    "Slurm does not say here how many GPUs each node has: in a step it would (srun --overlap -N1 -n1 -w NODE env)"
)


def in_allocation(env: Env) -> bool:
    """Return whether this process is in an allocation of Slurm."""
    lists = (
        "SLURM_JOB_NODELIST",
        "SLURM_NODELIST",
        "SLURM_JOB_NODELIST_HET_GROUP_0",
        "SLURM_JOB_NODELIST_PACK_GROUP_0",
    )
    return bool(env.get("SLURM_JOB_ID")) and any(env.get(name) for name in lists)


def is_task(env: Env) -> bool:
    """Return whether this process is one of several tasks of srun: it is a rank, and must not start ranks."""
    return _in_step(env) and env.get("SLURM_STEP_NUM_TASKS", "1") != "1"


def read(env: Env) -> JobSpec:
    """Return the nodes of the allocation, or, in a step of one task, of that step.

    The slots of a node are the requested tasks, or its number of GPUs, or Slurm's default number of tasks.

    Raises
    ------
    JobError
        This is one of several tasks of a step; or a variable is invalid.
    """
    if is_task(env):
        number = f"{env.get('SLURM_JOB_ID', '?')}.{env['SLURM_STEP_ID']}"
        raise JobError(
            f"srun has started this process as task {env.get('SLURM_PROCID', '?')} of {env['SLURM_STEP_NUM_TASKS']} of "
            f"Slurm step {number}, so each of them would start ranks: leave hvdrun out (srun python train.py), or srun "
            "(hvdrun python train.py)."
        )
    replicas: list[Replica] = []
    for component in _components(env):
        replicas += _nodes(component, len(replicas))
    return JobSpec("slurm", tuple(replicas), name=env.get("SLURM_JOB_NAME", ""), warnings=_warnings(env, replicas))


def title(env: Env) -> str:
    """Return a name for users: Slurm job 42, or Slurm step 42.1."""
    job = env.get("SLURM_JOB_ID", "?")
    return f"Slurm step {job}.{env['SLURM_STEP_ID']}" if _in_step(env) else f"Slurm job {job}"


def expand(names: str, variable: str = "SLURM_JOB_NODELIST") -> list[str]:
    """Return the names of a node list: ``expand("a[1-2]b[01,03],c") == ["a1b01", "a1b03", "a2b01", "a2b03", "c"]``.

    Raises
    ------
    JobError
        The list is invalid, or has more than ``MAX_RANKS`` names.
    """
    if not _LIST.fullmatch(names):
        raise JobError(
            f"{variable}={names!r} is not a list of nodes, as in n[1-3,07],m: a bracket or a name is missing."
        )
    nodes: list[str] = []
    for item in re.findall(_ITEM, names):
        parts = re.split(r"\[([^\]]*)\]", item)
        sets = [_numbers(part, variable) if index % 2 else [part] for index, part in enumerate(parts)]
        total = 1
        for alternatives in sets:
            total *= len(alternatives)
        if total + len(nodes) > MAX_RANKS:
            raise JobError(f"{variable}={names!r} has more than {MAX_RANKS} nodes.")
        nodes += ["".join(combination) for combination in product(*sets)]
    return nodes


def _numbers(ranges: str, variable: str) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or not 0 <= high - low < MAX_RANKS:
            raise JobError(f"{variable}: [{ranges}] has {item!r}, which is not a range of numbers: 1, 1-3 or 001-100.")
        numbers += [str(number).zfill(len(match[1])) for number in range(low, high + 1)]
    return numbers


def counts(text: str, variable: str) -> list[int]:
    """Return the numbers of ``counts("4(x2),3", ...) == [4, 4, 3]``.

    Raises
    ------
    JobError
        The text is invalid.
    """
    numbers: list[int] = []
    for item in text.split(","):
        match = _TIMES.fullmatch(item)
        times = int(match[2] or 1) if match else 0
        if match is None or times + len(numbers) > MAX_RANKS:
            raise JobError(f"{variable}={text!r} is not a number for each node, as in 4(x2),3.")
        numbers += [int(match[1])] * times
    return numbers


def step_options(env: Env) -> dict[str, str]:
    """Return for each host of a heterogeneous job the option of srun that selects its component.

    Without the option srun starts steps in the first component alone. A host of several components has the option of
    the first one. The result is empty for other jobs, and within a step.
    """
    options: dict[str, str] = {}
    for variable, mark, option in _HET:
        if variable in env and not (options or _in_step(env)):
            for number in range(min(_whole(env, variable), MAX_RANKS)):
                for host in expand(_component(env, f"{mark}{number}")["SLURM_JOB_NODELIST"]):
                    options.setdefault(host, f"{option}={number}")
    return options


def _in_step(env: Env) -> bool:
    return bool(env.get("SLURM_STEP_ID")) and env["SLURM_STEP_ID"] != _INTERACTIVE


def _components(env: Env) -> list[Env]:
    """Return the environment of each component of a heterogeneous job, as in a separate job."""
    if _in_step(env):
        alone = {name: value for name, value in env.items() if name not in _OF_THE_JOB}
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_NODELIST", "")
        cores = env.get("SLURM_CPUS_ON_NODE", "")
        return [alone | {"SLURM_JOB_NODELIST": nodes, "SLURM_JOB_CPUS_PER_NODE": cores, "SLURM_TASKS_PER_NODE": "1"}]
    for variable, mark, _ in _HET:
        if variable in env:
            total = _whole(env, variable)
            components = [_component(env, f"{mark}{number}") for number in range(min(total, MAX_RANKS))]
            of_node = {name: env[name] for name in ("SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS") if name in env}
            return [of_node | component if number == 0 else component for number, component in enumerate(components)]
    return [env]


def _component(env: Env, suffix: str) -> dict[str, str]:
    variables = {name.removesuffix(suffix): value for name, value in env.items() if name.endswith(suffix)}
    variables["SLURM_JOB_NODELIST"] = variables.get("SLURM_JOB_NODELIST") or variables.get("SLURM_NODELIST", "")
    if not variables["SLURM_JOB_NODELIST"]:
        raise JobError(f"SLURM_JOB_NODELIST{suffix} is not set: the heterogeneous job has lost a component.")
    return variables


def _nodes(env: Env, first: int) -> list[Replica]:
    names = expand(env.get("SLURM_JOB_NODELIST") or env.get("SLURM_NODELIST", ""))
    tasks = _each(env, "SLURM_TASKS_PER_NODE", len(names)) or _same(env, "SLURM_NTASKS_PER_NODE", len(names))
    cores = _each(env, "SLURM_JOB_CPUS_PER_NODE", len(names))
    gpus = _gpus(env, len(names), tasks)
    is_requested = "SLURM_NTASKS" in env or "SLURM_NTASKS_PER_NODE" in env
    slots = tasks if tasks and (is_requested or not gpus) else [gpus or 1] * len(names)
    replicas = []
    for index, name in enumerate(names):
        node_cores = cores[index] if cores else None
        resources = Resources(Bounds(node_cores), Bounds(_memory(env, node_cores)), gpus)
        replicas.append(Replica("host", first + index, name, slots[index], resources))
    return replicas


def _each(env: Env, variable: str, nodes: int) -> list[int]:
    """Return a number per node; an empty list if the variable is not set, or describes an interactive step."""
    if not env.get(variable):
        return []
    numbers = counts(env[variable], variable)
    if len(numbers) == nodes and all(numbers):
        return numbers
    if env.get("SLURM_STEP_ID") == _INTERACTIVE:
        return []
    raise JobError(
        f"{variable}={env[variable]!r} is for {plural(len(numbers), 'node')}, but there are {nodes}: if the job was "
        f"resized, unset {variable}."
    )


def _same(env: Env, variable: str, nodes: int) -> list[int]:
    return [_whole(env, variable)] * nodes if env.get(variable) else []


def _gpus(env: Env, nodes: int, tasks: Sequence[int]) -> int | None:
    """Return the number of GPUs of each node; None if it is unknown or may differ between nodes."""
    on_node = _whole(env, "SLURM_GPUS_ON_NODE") if env.get("SLURM_GPUS_ON_NODE") else None
    if on_node is None and env.get("SLURM_JOB_GPUS"):
        on_node = len(env["SLURM_JOB_GPUS"].split(","))
    if env.get("SLURM_GPUS_PER_NODE"):
        return _sum(env, "SLURM_GPUS_PER_NODE")
    if env.get("SLURM_GPUS_PER_TASK") and tasks and len(set(tasks)) == 1:
        return _sum(env, "SLURM_GPUS_PER_TASK") * tasks[0]
    if env.get("SLURM_GPUS") and nodes > 1 and _sum(env, "SLURM_GPUS") != (on_node or 0) * nodes:
        return None
    return _sum(env, "SLURM_GPUS") if on_node is None and nodes == 1 and env.get("SLURM_GPUS") else on_node


def _sum(env: Env, variable: str) -> int:
    """Return the GPUs of ``2``, ``a100:2`` or ``a100:1,v100:1``."""
    matches = [_GPUS.fullmatch(item) for item in env[variable].split(",")]
    if not all(matches):
        raise JobError(f"{variable}={env[variable]!r} is not a number of GPUs, as in 2 or a100:2.")
    return sum(int(item[1]) for item in matches if item)


def _memory(env: Env, cores: int | None) -> int | None:
    """Return a node's memory in bytes; Slurm's unit is mebibytes, and 0 stands for all memory."""
    try:
        whole = size(env.get("SLURM_MEM_PER_NODE", "0"))
        per_core = size(env.get("SLURM_MEM_PER_CPU", "0"))
    except ValueError as error:
        raise JobError(f"SLURM_MEM_PER_NODE or SLURM_MEM_PER_CPU: {error}.") from None
    return whole or (per_core * cores if cores else 0) or None


def _whole(env: Env, variable: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,5}|0", env[variable], re.ASCII):
        raise JobError(f"{variable}={env[variable]!r} is not a whole number.")
    return int(env[variable])


def _warnings(env: Env, nodes: Sequence[Replica]) -> tuple[str, ...]:
    job_nodes = env.get("SLURM_JOB_NUM_NODES", "")
    gpus = {node.resources.gpus for node in nodes}
    only = f"of the job's {job_nodes} nodes only this step's are used: start hvdrun outside of srun to have them all"
    warnings = {
        only: _in_step(env) and job_nodes.isdecimal() and int(job_nodes) > len(nodes),
        _A_STEP_KNOWS: None in gpus and (not env.get("SLURMD_NODENAME") or len(gpus) > 1),
    }
    return tuple(text for text, holds in warnings.items() if holds)
