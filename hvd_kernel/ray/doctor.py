"""Checks of what a notebook's ranks on Ray need: ``%hvd doctor --on ray``."""

from __future__ import annotations

from typing import Any

from hvd_kernel.diagnosis.machine import CheckResult
from hvd_kernel.errors import UsageError
from hvd_kernel.formatting.units import plural
from hvd_kernel.launch.launchers.cluster_engine import check_result, inspect_process, reachable
from hvd_kernel.ray.discovery import alive_nodes
from hvd_kernel.ray.notebook_actors import connected

_ANSWER_S = 60.0


def examine() -> list[CheckResult]:
    """Check Ray, and the Python of each node."""
    try:
        ray = connected()
    except UsageError as error:
        return [CheckResult("Ray", False, "not at hand", str(error))]
    free = {name: f"{count:g}" for name, count in ray.available_resources().items() if name in {"CPU", "GPU"}}
    listed = ", ".join(f"{count} {name}{'s' * (count != '1')}" for name, count in sorted(free.items())) or "nothing"
    fix = "" if free else "stop what holds them, or add nodes: ranks of --on ray ask for HVD_ON_CPUS and HVD_ON_GPUS"
    nodes = alive_nodes()
    result = CheckResult("Ray", bool(free), f"{ray.__version__}, {plural(len(nodes), 'node')}, {listed} free", fix)
    with reachable(str(ray.util.get_node_ip_address())) as address:
        pending = {str(node["NodeManagerAddress"]): _inspect(ray, str(node["NodeID"]), address) for node in nodes}
        done = ray.wait([*pending.values()], num_returns=len(pending), timeout=_ANSWER_S)[0]
        return [result, *(_result(ray, f"node {name}", answer, done) for name, answer in sorted(pending.items()))]


def _inspect(ray: Any, node: str, address: tuple[str, int]) -> Any:
    """Start a task that inspects a node; return the reference to its answer."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(inspect_process).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote(*address)


def _result(ray: Any, name: str, reference: Any, done: list[Any]) -> CheckResult:
    if reference not in done:
        return CheckResult(name, False, f"no answer within {_ANSWER_S:g} s", "look at the node with `ray status`")
    try:
        return check_result(name, ray.get(reference))
    except Exception as error:  # noqa: BLE001 - any failure of the task is a failed check of the node
        last = str(error).strip().splitlines()[-1]
        return CheckResult(
            name, False, last, "install hvd-kernel for the Python of the nodes, the same version as here"
        )
