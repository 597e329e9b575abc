"""``horovod.runner.gloo_run``: ranks that are started without MPI, and the variables that tell them who they are."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hvd_kernel.compat.jobs import launch, launch_elastic
from hvd_kernel.compat.tree.runner.common.util.hosts import SlotInfo


def gloo_run(
    settings: Any, nics: Iterable[str] | None, env: Mapping[str, str] | None, server_ip: str, command: Any
) -> None:
    """Start the command on every rank; ``server_ip`` is Horovod's: the ranks meet where they are told to."""
    del server_ip
    launch(settings, nics, env, command)


def gloo_run_elastic(settings: Any, env: Mapping[str, str] | None, command_or_func: Any, executable: str | None) -> Any:
    """Start an elastic job of an ``ElasticSettings``: a command, or a function, whose results it returns."""
    if not callable(command_or_func):
        return launch_elastic(settings, env, command_or_func)
    return importlib.import_module("hvd_kernel.launch.run.api").run(
        command_or_func,
        num_proc=settings.num_proc or settings.min_num_proc,
        min_num_proc=settings.min_num_proc or settings.num_proc,
        max_num_proc=settings.max_num_proc,
        host_discovery_script=settings.discovery,
        elastic_timeout=settings.elastic_timeout,
        reset_limit=settings.reset_limit,
        cooldown_range=settings.cooldown_range,
        executable=executable,
        env=env,
    )


def create_slot_env_vars(slot_info: SlotInfo) -> dict[str, str]:
    """Return the variables from which a rank knows its place."""
    numbers = {
        "RANK": slot_info.rank,
        "SIZE": slot_info.size,
        "LOCAL_RANK": slot_info.local_rank,
        "LOCAL_SIZE": slot_info.local_size,
        "CROSS_RANK": slot_info.cross_rank,
        "CROSS_SIZE": slot_info.cross_size,
    }
    return {"HOROVOD_HOSTNAME": slot_info.hostname} | {f"HOROVOD_{name}": str(n) for name, n in numbers.items()}


def create_run_env_vars(server_ip: str, nics: Iterable[str], port: int, elastic: bool = False) -> dict[str, str]:
    """Return the variables from which ranks of Horovod's launcher know where they meet."""
    names = list(nics)
    made = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": str(server_ip),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": names[0],
        "NCCL_SOCKET_IFNAME": ",".join(names),
    }
    return made | ({"HOROVOD_ELASTIC": "1"} if elastic else {})


def get_run_command(
    command: Sequence[str], server_ip: str, nics: Iterable[str], port: int, elastic: bool = False
) -> str:
    """Return the command behind these variables, for a shell."""
    variables = create_run_env_vars(server_ip, nics, port, elastic)
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(command)])
