"""``horovod.runner.{gloo_run, js_run, mpi_run}``: start ranks with the arguments of Horovod's launchers."""

from __future__ import annotations

import importlib
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hvd_kernel.compat.tree import utilities
from hvd_kernel.compat.tree.hosts import SlotInfo
from hvd_kernel.settings.lists import entries


def launch(settings: Any, nics: Iterable[str] | None, env: Mapping[str, str] | None, command: Any, **more: Any) -> None:
    """Start the command on every rank and wait for the ranks to exit.

    Raises
    ------
    RuntimeError
        A rank failed; the other ranks were terminated.
    ConfigError
        The settings are inconsistent.
    """
    hosts = importlib.import_module("hvd_kernel.launch.placement")
    np = settings.num_proc or sum(host.slots for host in hosts.job_hosts(settings.hosts, None, 1))
    stdout, stderr = more.pop("stdout", None), more.pop("stderr", None)
    job = _job(settings, nics, env, command, np=np, hosts=settings.hosts, **more)
    _check(importlib.import_module("hvd_kernel.launch.job_run").launch(job, stdout=stdout, stderr=stderr))


def launch_elastic(settings: Any, env: Mapping[str, str] | None, command: Any) -> None:
    """Start the command as an elastic job on the hosts of ``settings.discovery``; wait until the job is complete.

    Raises
    ------
    RuntimeError
        The job failed.
    ConfigError
        The settings are inconsistent.
    """
    options = importlib.import_module("hvd_kernel.launch.elastic.options")
    elastic = importlib.import_module("hvd_kernel.launch.elastic.job")
    start, least = options.sizes(settings.num_proc, settings.min_num_proc, settings.max_num_proc, ())
    parameters = options.ElasticOptions(
        np=start,
        min_np=least,
        max_np=settings.max_num_proc,
        script=settings.discovery,
        timeout_s=seconds(settings.elastic_timeout),
        reset_limit=settings.reset_limit,
        cooldown_s=None if settings.cooldown_range is None else tuple(settings.cooldown_range),
    )
    _check(elastic.launch_elastic(_job(settings, None, env, command, np=start), parameters))


def _job(settings: Any, nics: Iterable[str] | None, env: Mapping[str, str] | None, command: Any, **more: Any) -> Any:
    return importlib.import_module("hvd_kernel.launch.job_run").Job(
        command=shlex.split(command) if isinstance(command, str) else list(command),
        env=dict(env or {}),
        ssh_port=settings.ssh_port,
        ssh_identity_file=settings.ssh_identity_file,
        network_interface=interface(nics or settings.nics),
        output_filename=settings.output_filename,
        start_timeout_s=seconds(settings.start_timeout),
        timestamp=bool(settings.prefix_output_with_timestamp),
        verbose=bool(settings.verbose),
        **more,
    )


def _check(outcome: Any) -> None:
    if outcome.status:
        raise RuntimeError(
            "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be "
            "terminated. The first process to do so was:\n"
            f"Process name: {outcome.failed}\nExit code: {outcome.status}\n"
        )


def interface(nics: Iterable[str] | str | None) -> str:
    """Return the first network interface, without the loopback, which ranks find automatically."""
    names = entries(nics) if isinstance(nics, str) else sorted(nics or ())
    return next((name for name in names if name != "lo"), "")


def seconds(timeout: Any) -> float | None:
    """Return a number of seconds, or the seconds that are left of a ``Timeout``."""
    left = timeout.remaining() if hasattr(timeout, "remaining") else timeout
    return float(left) if left else None


def mpi_arguments(settings: Sequence[str | None]) -> tuple[str, ...]:
    """Return the arguments for mpiexec from several command lines."""
    return tuple(word for text in settings for word in shlex.split(text or ""))


def gloo_run(
    settings: Any, nics: Iterable[str] | None, env: Mapping[str, str] | None, server_ip: str, command: Any
) -> None:
    """Start the command on every rank and wait for the ranks to exit."""
    del server_ip  # Horovod's: the launcher chooses the rendezvous address
    launch(settings, nics, env, command)


def gloo_run_elastic(settings: Any, env: Mapping[str, str] | None, command_or_func: Any, executable: str | None) -> Any:
    """Start an elastic job with ``ElasticSettings``: a command, or a function; return the function's results."""
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
    """Return the environment variables of a rank's placement."""
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
    """Return the environment variables of the rendezvous of Horovod's launcher."""
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
    """Return the shell command with the variables of ``create_run_env_vars`` before it."""
    variables = create_run_env_vars(server_ip, nics, port, elastic)
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(command)])


_OMPI_IMPL = "OpenMPI"
_SMPI_IMPL = "SpectrumMPI"
_MPICH_IMPL = "MPICH"
_IMPI_IMPL = "IntelMPI"
_UNKNOWN_IMPL = "Unknown"
_MISSING_IMPL = "Missing"
_SIGNS = (  # in the output of `mpirun --version`; MPICH's and Intel's both name Hydra
    ("Open MPI", _OMPI_IMPL),
    ("OpenRTE", _OMPI_IMPL),
    ("IBM Spectrum MPI", _SMPI_IMPL),
    ("Intel(R) MPI", _IMPI_IMPL),
    ("MPICH", _MPICH_IMPL),
    ("HYDRA", _MPICH_IMPL),
)


def mpi_run(  # noqa: PLR0917 - Horovod's signature
    settings: Any,
    nics: Iterable[str] | None,
    env: Mapping[str, str],
    command: Any,
    stdout: Any = None,
    stderr: Any = None,
) -> None:
    """Start the command on every rank with this environment's mpiexec and wait for the ranks to exit."""
    arguments = mpi_arguments([settings.binding_args, settings.extra_mpi_args])
    more = {"NCCL_IB_DISABLE": "1"} if settings.tcp_flag else {}
    launch(
        settings,
        nics,
        dict(env) | more,
        command,
        stdout=stdout,
        stderr=stderr,
        use_mpi=True,
        mpi_args=arguments,
    )


def mpi_available(env: Mapping[str, str] | None = None) -> bool:
    """Return whether there is an mpirun of a known implementation."""
    return _get_mpi_implementation(env) not in {_UNKNOWN_IMPL, _MISSING_IMPL}


def is_open_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Return whether mpirun is Open MPI's."""
    return _get_mpi_implementation(env) == _OMPI_IMPL


def is_spectrum_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Return whether mpirun is IBM's."""
    return _get_mpi_implementation(env) == _SMPI_IMPL


def is_mpich(env: Mapping[str, str] | None = None) -> bool:
    """Return whether mpirun is MPICH's."""
    return _get_mpi_implementation(env) == _MPICH_IMPL


def is_intel_mpi(env: Mapping[str, str] | None = None) -> bool:
    """Return whether mpirun is Intel's."""
    return _get_mpi_implementation(env) == _IMPI_IMPL


def _get_mpi_implementation(env: Mapping[str, str] | None = None) -> str:
    output, status = utilities.execute("mpirun --version", env) or ("", 1)
    if status:
        return _MISSING_IMPL
    return next((kind for sign, kind in _SIGNS if sign in output), _UNKNOWN_IMPL)


def is_jsrun_installed() -> bool:
    """Return whether jsrun is installed."""
    return shutil.which("jsrun") is not None
