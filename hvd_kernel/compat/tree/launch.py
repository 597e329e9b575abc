"""``horovod.runner.launch``: the command ``horovodrun`` as functions; here it is ``hvdrun``.

``horovod.runner.common.util.config_parser``: environment variables, and the attributes of flags that set them.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from hvd_kernel.compat.tree.hosts import (
    ElasticSettings,
    FixedHosts,
    HostDiscoveryScript,
    Settings,
    parse_host_files,
    parse_hosts_and_slots,
)
from hvd_kernel.compat.tree.launchers import gloo_run, gloo_run_elastic, mpi_run

CACHE_FOLDER = str(Path("~/.horovod").expanduser())
CACHE_STALENESS_THRESHOLD_MINUTES = 60
SSH_ATTEMPTS = 5
SSH_CONNECT_TIMEOUT_S = 10

_UNSET = (  # attributes that hvdrun's flags never set
    "config_file",
    "run_func",
    "executable",
    "disable_cache",
    "check_build",
    "binding_args",
)


_ELASTIC = {  # attribute -> field of hvdrun's options of elastic jobs
    "host_discovery_script": "script",
    "min_num_proc": "min_np",
    "max_num_proc": "max_np",
    "slots": "slots",
    "elastic_timeout": "timeout_s",
    "reset_limit": "reset_limit",
    "cooldown_range": "cooldown_s",
}


def run_commandline() -> None:
    """Run ``hvdrun`` with this process's command line; exit with the status of a job that failed."""
    status = importlib.import_module("hvd_kernel.launch.cli.main").main()
    if status:
        sys.exit(status)


def parse_args() -> argparse.Namespace:
    """Parse this process's command line; the attributes have Horovod's names.

    Raises
    ------
    UsageError
        A flag is wrong; the message names the flag and the remedy.
    """
    request = importlib.import_module("hvd_kernel.launch.cli.flags").parse(sys.argv[1:])
    if request.action == "check_build":
        check_build(verbose=False)
    if request.action:
        run_commandline()
        sys.exit()
    values = {
        "num_proc": request.np or None,
        "command": request.command,
        "hosts": request.hosts,
        "hostfile": request.hostfile,
        "ssh_port": request.ssh_port,
        "ssh_identity_file": request.ssh_identity_file,
        "nics": set(request.interfaces) or None,
        "output_filename": request.output_filename,
        "start_timeout": request.start_timeout_s,
        "prefix_output_with_timestamp": request.timestamp,
        "verbose": request.verbose,
        "use_gloo": not request.use_mpi,
        "use_mpi": request.use_mpi,
        "use_jsrun": False,
        "mpi_args": shlex.join(request.mpi_args) or None,
    }
    elastic = {name: getattr(request.elastic, field, None) for name, field in _ELASTIC.items()}
    values |= elastic | {"host_discovery_script": elastic["host_discovery_script"] or None}
    return argparse.Namespace(**(dict.fromkeys(_UNSET) | args_of_env(request.env) | values))


def check_build(verbose: bool) -> NoReturn:
    """Print the build report and exit."""
    del verbose  # Horovod's
    sys.stdout.write(importlib.import_module("hvd_kernel.launch.cli.check_build").report())
    sys.exit()


def is_gloo_used(use_gloo: bool | None = None, use_mpi: bool | None = None, use_jsrun: bool | None = None) -> bool:
    """Return whether ranks are started without MPI."""
    return bool(use_gloo) or not (use_mpi or use_jsrun)


def run_controller(  # noqa: PLR0917 - Horovod's signature
    use_gloo: bool | None,
    gloo_run: Callable[[], Any],
    use_mpi: bool | None,
    mpi_run: Callable[[], Any],
    use_jsrun: bool | None,
    js_run: Callable[[], Any],
    verbosity: int | None,
) -> None:
    """Call the function of the requested launcher; the default is ``gloo_run``."""
    del verbosity  # Horovod's
    chosen = js_run if use_jsrun and not use_gloo and not use_mpi else mpi_run if use_mpi and not use_gloo else gloo_run
    chosen()


def _run(args: Any) -> Any:
    """Start the job of a parsed command line; return the results of ``run_func`` by rank if it is set."""
    if args.host_discovery_script or args.min_num_proc:
        return _run_elastic(args)
    hosts, env = _hosts(args), set_env_from_args({}, args)
    if args.run_func:
        run = importlib.import_module("hvd_kernel.launch.run.api").run
        return run(args.run_func, np=args.num_proc, hosts=hosts, env=env, executable=args.executable)
    settings = Settings(hosts, extra_mpi_args=args.mpi_args, **_common(args))
    if args.use_mpi:
        return mpi_run(settings, args.nics, env, args.command)
    return gloo_run(settings, args.nics, env, "", args.command)


def _run_elastic(args: Any) -> Any:
    """Start the elastic job of a parsed command line, on the hosts of its script or of its host list."""
    slots = args.slots or 1
    if args.host_discovery_script:
        discovery: Any = HostDiscoveryScript(args.host_discovery_script, slots)
    else:
        hosts = _hosts(args) or f"localhost:{args.num_proc or args.min_num_proc}"
        discovery = FixedHosts(parse_hosts_and_slots(hosts)[1])
    settings = ElasticSettings(
        discovery,
        args.min_num_proc,
        args.max_num_proc,
        args.elastic_timeout,
        args.reset_limit,
        args.cooldown_range,
        **_common(args),
    )
    env = set_env_from_args({}, args)
    return gloo_run_elastic(settings, env, args.run_func or args.command, args.executable)


def _hosts(args: Any) -> str | None:
    return args.hosts or (parse_host_files(args.hostfile) if args.hostfile else None)


def _common(args: Any) -> dict[str, Any]:
    """Return the parameters of static and elastic settings."""
    names = ("num_proc", "ssh_port", "ssh_identity_file", "binding_args", "tcp_flag", "start_timeout", "nics")
    values = {name: getattr(args, name) for name in (*names, "output_filename", "prefix_output_with_timestamp")}
    return values | {"verbose": 2 if args.verbose else 0}


if __name__ == "__main__":
    run_commandline()


HOROVOD_FUSION_THRESHOLD = "HOROVOD_FUSION_THRESHOLD"
HOROVOD_CYCLE_TIME = "HOROVOD_CYCLE_TIME"
HOROVOD_CACHE_CAPACITY = "HOROVOD_CACHE_CAPACITY"
HOROVOD_HIERARCHICAL_ALLREDUCE = "HOROVOD_HIERARCHICAL_ALLREDUCE"
HOROVOD_HIERARCHICAL_ALLGATHER = "HOROVOD_HIERARCHICAL_ALLGATHER"
HOROVOD_TORUS_ALLREDUCE = "HOROVOD_TORUS_ALLREDUCE"
HOROVOD_AUTOTUNE = "HOROVOD_AUTOTUNE"
HOROVOD_AUTOTUNE_LOG = "HOROVOD_AUTOTUNE_LOG"
HOROVOD_AUTOTUNE_WARMUP_SAMPLES = "HOROVOD_AUTOTUNE_WARMUP_SAMPLES"
HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE = "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"
HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES = "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"
HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE = "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"
HOROVOD_TIMELINE = "HOROVOD_TIMELINE"
HOROVOD_TIMELINE_MARK_CYCLES = "HOROVOD_TIMELINE_MARK_CYCLES"
HOROVOD_STALL_CHECK_DISABLE = "HOROVOD_STALL_CHECK_DISABLE"
HOROVOD_STALL_CHECK_TIME_SECONDS = "HOROVOD_STALL_CHECK_TIME_SECONDS"
HOROVOD_STALL_SHUTDOWN_TIME_SECONDS = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
HOROVOD_MPI_THREADS_DISABLE = "HOROVOD_MPI_THREADS_DISABLE"
HOROVOD_NUM_NCCL_STREAMS = "HOROVOD_NUM_NCCL_STREAMS"
NCCL_IB_DISABLE = "NCCL_IB_DISABLE"
HOROVOD_THREAD_AFFINITY = "HOROVOD_THREAD_AFFINITY"
HOROVOD_GLOO_TIMEOUT_SECONDS = "HOROVOD_GLOO_TIMEOUT_SECONDS"
HOROVOD_ELASTIC_TIMEOUT = "HOROVOD_ELASTIC_TIMEOUT"
HOROVOD_LOG_LEVEL = "HOROVOD_LOG_LEVEL"
HOROVOD_LOG_HIDE_TIME = "HOROVOD_LOG_HIDE_TIME"
LOG_LEVELS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]

_MB = 1 << 20
_SWITCHES = {  # attribute -> variable, 1 or 0
    "hierarchical_allreduce": HOROVOD_HIERARCHICAL_ALLREDUCE,
    "hierarchical_allgather": HOROVOD_HIERARCHICAL_ALLGATHER,
    "torus_allreduce": HOROVOD_TORUS_ALLREDUCE,
    "autotune": HOROVOD_AUTOTUNE,
    "timeline_mark_cycles": HOROVOD_TIMELINE_MARK_CYCLES,
    "no_stall_check": HOROVOD_STALL_CHECK_DISABLE,
    "mpi_threads_disable": HOROVOD_MPI_THREADS_DISABLE,
    "tcp_flag": NCCL_IB_DISABLE,
}
_VALUES = {  # attribute -> variable, the value as text
    "cycle_time_ms": HOROVOD_CYCLE_TIME,
    "cache_capacity": HOROVOD_CACHE_CAPACITY,
    "autotune_log_file": HOROVOD_AUTOTUNE_LOG,
    "autotune_warmup_samples": HOROVOD_AUTOTUNE_WARMUP_SAMPLES,
    "autotune_steps_per_sample": HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE,
    "autotune_bayes_opt_max_samples": HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES,
    "autotune_gaussian_process_noise": HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE,
    "timeline_filename": HOROVOD_TIMELINE,
    "stall_check_warning_time_seconds": HOROVOD_STALL_CHECK_TIME_SECONDS,
    "stall_check_shutdown_time_seconds": HOROVOD_STALL_SHUTDOWN_TIME_SECONDS,
    "num_nccl_streams": HOROVOD_NUM_NCCL_STREAMS,
    "thread_affinity": HOROVOD_THREAD_AFFINITY,
    "gloo_timeout_seconds": HOROVOD_GLOO_TIMEOUT_SECONDS,
    "log_level": HOROVOD_LOG_LEVEL,
}
_SECTIONS = {  # section of the file -> key of it -> attribute
    "params": {
        name: name
        for name in (
            "fusion_threshold_mb",
            "cycle_time_ms",
            "cache_capacity",
            "hierarchical_allreduce",
            "hierarchical_allgather",
            "torus_allreduce",
        )
    },
    "autotune": {"enabled": "autotune"}
    | {
        key: f"autotune_{key}"
        for key in (
            "log_file",
            "warmup_samples",
            "steps_per_sample",
            "bayes_opt_max_samples",
            "gaussian_process_noise",
        )
    },
    "timeline": {"filename": "timeline_filename", "mark_cycles": "timeline_mark_cycles"},
    "stall_check": {
        "warning_time_seconds": "stall_check_warning_time_seconds",
        "shutdown_time_seconds": "stall_check_shutdown_time_seconds",
    },
    "library_options": {
        name: name for name in ("mpi_threads_disable", "num_nccl_streams", "thread_affinity", "gloo_timeout_seconds")
    },
    "logging": {"level": "log_level", "with_timestamp": "log_with_timestamp"},
}
_CONTROLLERS = {"gloo": "use_gloo", "mpi": "use_mpi"}
_FROM_ZERO = ("fusion_threshold_mb", *_VALUES)


def set_args_from_config(args: Any, config: Mapping[str, Any], override_args: Collection[str]) -> None:
    """Set attributes of ``args`` to the values of a configuration file, except those in ``override_args``.

    Raises
    ------
    ValueError
        The file names an unknown controller.
    """
    controller = config.get("controller")
    if controller and not args.use_gloo and not args.use_mpi:
        if str(controller).lower() not in _CONTROLLERS:
            raise ValueError(f"No such controller supported: {controller}")
        setattr(args, _CONTROLLERS[str(controller).lower()], True)
    for section, keys in _SECTIONS.items():
        values = config.get(section) or {}
        for key, attribute in keys.items():
            if values.get(key) is not None and attribute not in override_args:
                setattr(args, attribute, values[key])
    enabled = (config.get("stall_check") or {}).get("enabled")
    if enabled is not None and "no_stall_check" not in override_args:
        args.no_stall_check = not enabled


def validate_config_args(args: Any) -> None:
    """Check that numbers are in range.

    Raises
    ------
    ValueError
        A number is out of range; the message has the attribute, its value and the range.
    """
    for name in _FROM_ZERO:
        value = getattr(args, name, None)
        if isinstance(value, int | float) and value < 0:
            raise ValueError(f"{name}={value} must be >= 0")
    noise = getattr(args, "autotune_gaussian_process_noise", None)
    if noise is not None and not 0 <= noise <= 1:
        raise ValueError(f"autotune_gaussian_process_noise={noise} must be in [0, 1]")


def set_env_from_args(env: MutableMapping[str, str], args: Any) -> MutableMapping[str, str]:
    """Add the variables of the attributes that are set in ``args`` to ``env``; return ``env``."""
    values = {name: value for name, value in vars(args).items() if value is not None}
    if "fusion_threshold_mb" in values:
        env[HOROVOD_FUSION_THRESHOLD] = str(values["fusion_threshold_mb"] * _MB)
    env.update({variable: str(values[name]) for name, variable in _VALUES.items() if name in values})
    env.update({variable: str(int(bool(values[name]))) for name, variable in _SWITCHES.items() if name in values})
    if "log_with_timestamp" in values:
        env[HOROVOD_LOG_HIDE_TIME] = str(int(not values["log_with_timestamp"]))
    return env


def args_of_env(env: Mapping[str, str]) -> dict[str, Any]:
    """Invert ``set_env_from_args``: return every attribute, None if ``env`` lacks its variable."""
    values = {name: _number(env.get(variable)) for name, variable in _VALUES.items()}
    switches = {name: _switch(env.get(variable)) for name, variable in _SWITCHES.items()}
    hidden, size = _switch(env.get(HOROVOD_LOG_HIDE_TIME)), env.get(HOROVOD_FUSION_THRESHOLD)
    return (
        values
        | switches
        | {
            "log_with_timestamp": None if hidden is None else not hidden,
            "fusion_threshold_mb": int(size) // _MB if size else None,
        }
    )


def _switch(text: str | None) -> bool | None:
    return None if text in {None, ""} else text != "0"


def _number(text: str | None) -> Any:
    for kind in (int, float):
        with suppress(TypeError, ValueError):
            return kind(text)  # type: ignore[arg-type] # refused as a TypeError
    return text or None
