"""What is missing for a notebook's ranks on Ray: ``%hvd doctor --on ray``."""

from __future__ import annotations

from typing import Any

from hvd_kernel.diagnosis.machine import CheckResult
from hvd_kernel.errors import UsageError
from hvd_kernel.launch.launchers.engine_look import finding, look, reachable
from hvd_kernel.ray.discovery import alive_nodes
from hvd_kernel.ray.notebook.actors import connected

_LOOK_S = 60.0


def examine() -> list[CheckResult]:
    """Look at Ray, and at the Python of each of its nodes."""
    try:
        ray = connected()
    except UsageError as error:
        return [CheckResult("Ray", False, "not at hand", str(error))]
    free = {name: f"{count:g}" for name, count in ray.available_resources().items() if name in {"CPU", "GPU"}}
    words = ", ".join(f"{count} {name}{'s' * (count != '1')}" for name, count in sorted(free.items())) or "nothing"
    fix = "" if free else "stop what holds them, or add nodes: ranks of --on ray ask for HVD_ON_CPUS and HVD_ON_GPUS"
    nodes = alive_nodes()
    found = [CheckResult("Ray", bool(free), f"{ray.__version__}, {len(nodes)} node(s), {words} free", fix)]
    address = str(ray.util.get_node_ip_address())
    with reachable(address) as where:
        asked = {str(node["NodeManagerAddress"]): _asked(ray, str(node["NodeID"]), where) for node in nodes}
        there = ray.wait([*asked.values()], num_returns=len(asked), timeout=_LOOK_S)[0]
        return found + [_told(ray, f"node {name}", each, there) for name, each in sorted(asked.items())]


def _asked(ray: Any, node: str, where: tuple[str, int]) -> Any:
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(look).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote(*where)


def _told(ray: Any, name: str, reference: Any, there: list[Any]) -> CheckResult:
    if reference not in there:
        return CheckResult(name, False, f"no answer within {_LOOK_S:g} s", "look at the node with `ray status`")
    try:
        return finding(name, ray.get(reference))
    except Exception as error:  # noqa: BLE001 - whatever the node cannot do is what is wrong with it
        last = str(error).strip().splitlines()[-1]
        return CheckResult(
            name, False, last, "install hvd-kernel for the Python of the nodes, the same version as here"
        )
