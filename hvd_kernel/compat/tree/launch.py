"""``horovod.runner.launch``: the command ``horovodrun`` as functions; here it is ``hvdrun``."""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from hvd_kernel.compat.tree import config_parser
from hvd_kernel.compat.tree.hosts import FixedHosts, HostDiscoveryScript, parse_host_files, parse_hosts_and_slots
from hvd_kernel.compat.tree.launchers import gloo_run, gloo_run_elastic, mpi_run
from hvd_kernel.compat.tree.settings import ElasticSettings, Settings

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
    return argparse.Namespace(**(dict.fromkeys(_UNSET) | config_parser.args_of_env(request.env) | values))


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
    hosts, env = _hosts(args), config_parser.set_env_from_args({}, args)
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
    env = config_parser.set_env_from_args({}, args)
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
