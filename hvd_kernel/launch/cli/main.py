"""``hvdrun -np 4 python train.py``: the command."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import hvd_kernel
from hvd_kernel.errors import ClusterError, ConfigError, UsageError
from hvd_kernel.jobs.grace import GracePeriod
from hvd_kernel.jobs.here import allocation
from hvd_kernel.jobs.place import HERE
from hvd_kernel.jobs.readers.mpirun import HOROVOD_PROGRAMS, JSRUN, JSRUN_PLACE, PROGRAMS, launcher_of
from hvd_kernel.jobs.shell_lines import join
from hvd_kernel.launch.cancellation import JobCancelled, Signalled, ignore_signals, raise_on_signals
from hvd_kernel.launch.cli import check_build, horovodrun
from hvd_kernel.launch.cli.flags import HvdrunRequest, parse, split
from hvd_kernel.launch.elastic.job import launch_elastic
from hvd_kernel.launch.forwarding import ignore_until_forwarded, own_stdin
from hvd_kernel.launch.job_run import Job, launch
from hvd_kernel.launch.outcome import shell_status
from hvd_kernel.launch.output_sinks import write_stderr
from hvd_kernel.launch.placement import TORCH_PORT_IN_USE, JobSize, allocated_cores, without_flags
from hvd_kernel.processes.limits import Capacity
from hvd_kernel.processes.ports import reserve_port
from hvd_kernel.settings.network import addresses

_COMMANDS = {"job": "hvd_kernel.launch.cli.job", "doctor": "hvd_kernel.launch.doctor.command"}
"""First word -> module whose ``main`` gets the others; loaded lazily, because they import readers of all platforms."""
_INFO_FLAGS = {"--version": "--version", "-V": "--version", "--help": "--help", "-h": "--help", "-help": "--help"}
"""Flags of mpirun -> those of hvdrun."""
FLAGS_FIRST = "hvdrun: there is no program {command}; flags of hvdrun {command} follow it: {line}"
"""Error of ``hvdrun --verbose job run FILE``."""
_WRONG_USE = 2
_FAILED = 1


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status: the failed rank's, 128 + N for signal N, 2 for wrong use."""
    raise_on_signals()
    ignore_until_forwarded()
    try:
        words = [*(sys.argv[1:] if words is None else words)]
        command = split(words)[1]
        words = translate_launcher_line(words, command) or words
        _check_order(words, command)
        if words and words[0] in _COMMANDS:
            return int(importlib.import_module(_COMMANDS[words[0]]).main(words[1:]))
        request = parse(words)
        return _ACTIONS[request.action](request)
    except (UsageError, ConfigError) as error:
        return _report_error(error, _WRONG_USE)
    except (JobCancelled, Signalled) as error:
        ignore_signals()
        return _report_error(error, shell_status(-error.number))
    except ClusterError as error:
        return _report_error(error, _FAILED)
    except BrokenPipeError:  # the reader of our output is gone; at exit Python would report that once more
        sys.stdout = sys.stderr = None
        return shell_status(-signal.SIGPIPE)


def _report_error(error: BaseException, status: int) -> int:
    text = str(error)
    write_stderr(f"{text if text.startswith('hvdrun') else f'hvdrun: {text}'}\n")
    return status


def _run(request: HvdrunRequest) -> int:
    interface = _interface(request.interfaces)
    names = {"HVD_TCP_INTERFACE": "", "HOROVOD_GLOO_IFACE": interface, "NCCL_SOCKET_IFNAME": interface}
    for warning in request.warnings:
        write_stderr(f"hvdrun: warning: {warning}\n")
    size = _size(request)
    if size.hosts == f"{HERE}:{size.np}" and size.part is None and (shortage := Capacity.now().shortage(size.np)):
        write_stderr(f"hvdrun: warning: {shortage}: they may be killed while they start; -np says fewer\n")
    part = size.part
    if part is not None and part.index == 0 and not reserve_port(part.torch_port):
        write_stderr(f"hvdrun: warning: {TORCH_PORT_IN_USE.format(port=part.torch_port)}\n")
    job = Job(
        command=request.command,
        np=size.np,
        hosts=size.hosts or None,
        env=request.env | (names if interface else {}),
        hostfile=request.hostfile,
        ssh_port=request.ssh_port,
        ssh_identity_file=request.ssh_identity_file,
        network_interface=interface,
        output_filename=request.output_filename,
        exit_report=request.exit_report,
        output_max_bytes=request.output_max_bytes,
        start_timeout_s=request.start_timeout_s,
        timestamp=request.timestamp,
        stdin=own_stdin(),
        use_mpi=request.use_mpi,
        mpi_args=request.mpi_args,
        verbose=request.verbose,
        grace=None if request.grace_s is None else GracePeriod(request.grace_s, request.grace_s),
        via=size.via,
        cores=size.cores,
        part=part,
    )
    return (launch(job) if request.elastic is None else launch_elastic(job, request.elastic)).status


def _size(request: HvdrunRequest) -> JobSize:
    """Return the ranks and their hosts: from the flags, else from the allocation or machine in which this runs."""
    if request.elastic is not None:
        _refuse_allocation(request)
        return JobSize(request.np, "", "", cores=allocated_cores(allocation(os.environ)))
    has_hosts = bool(request.hosts or request.hostfile)
    if has_hosts and not request.use_jsrun:
        return JobSize(request.np, request.hosts or "", "")
    size = without_flags(os.environ | request.env, request.np)
    if request.use_jsrun and (has_hosts or size.via != JSRUN):
        raise UsageError(
            f"hvdrun: --jsrun is for the hosts of {JSRUN_PLACE}, where jsrun is on PATH: leave out one of them"
        )
    if not request.np or size.via or size.part:
        write_stderr(f"hvdrun: {size.sentence}\n")
    return size


def _refuse_allocation(request: HvdrunRequest) -> None:
    """Refuse an elastic job without a source of hosts in an allocation, whose number of hosts is fixed.

    Raises
    ------
    UsageError
        Naming the flags that name hosts.
    """
    allocated = allocation(os.environ)
    source = request.hosts or request.hostfile or (request.elastic and request.elastic.script)
    if allocated is not None and not source:
        raise UsageError(
            f"hvdrun: {allocated.sentence}: name the hosts of an elastic job there with -H, --hostfile or "
            "--host-discovery-script; ssh reaches them"
        )


def _interface(names: Sequence[str]) -> str:
    """Return the first of the user's interfaces that exists on this host."""
    existing = addresses()
    if names and not any(name in existing for name in names):
        raise UsageError(f"hvdrun: --network-interfaces {','.join(names)}: this host has {', '.join(existing)}")
    chosen = next((name for name in names if name in existing), "")
    if len(names) > 1:
        write_stderr(f"hvdrun: warning: ranks use one network interface: {chosen}, the first of them that is here\n")
    return chosen


def _version(_request: HvdrunRequest) -> int:
    sys.stdout.write(f"{hvd_kernel.__version__}\n")
    return 0


def _check_build(_request: HvdrunRequest) -> int:
    sys.stdout.write(check_build.report())
    return 0


def _report_installed(path: Path) -> int:
    sys.stdout.write(f"{path}\n")
    return 0


def _report_removed(path: Path | None) -> int:
    if path is None:
        write_stderr("hvdrun: it is not installed here: there is nothing to do\n")
    else:
        sys.stdout.write(f"{path}\n")
    return 0


_ACTIONS: dict[str, Callable[[HvdrunRequest], int]] = {
    "": _run,
    "version": _version,
    "check_build": _check_build,
    "install_horovodrun": lambda _request: _report_installed(horovodrun.install()),
    "uninstall_horovodrun": lambda _request: _report_removed(horovodrun.uninstall()),
    "install_horovod": lambda _request: _report_installed(horovodrun.install_import()),
    "uninstall_horovod": lambda _request: _report_removed(horovodrun.uninstall_import()),
    "build_horovod_shim": lambda request: _report_installed(horovodrun.build_shim(request.folder)),
    "install_mpirun": lambda request: _report_installed(horovodrun.install_mpirun(request.folder)),
}


def misplaced_flags(words: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return the line for one whose flags are before ``job`` or ``doctor``; empty: it is another line. Pure.

    Parameters
    ----------
    words
        All arguments of ``hvdrun``; after ``--`` the command is a program of that name.
    command
        The last of them: the command that they start.
    """
    flags = [*words[: len(words) - len(command)]]
    if not flags or "--" in flags or not command or command[0] not in _COMMANDS:
        return []
    at = 2 if command[0] == "job" else 1  # the flags of a job are its verb's
    return [*command[:at], *flags, *command[at:]]


def _check_order(words: Sequence[str], command: Sequence[str]) -> None:
    line = misplaced_flags(words, command)
    if line and shutil.which(command[0]) is None:
        raise UsageError(FLAGS_FIRST.format(command=command[0], line=join(["hvdrun", *line])))


def translate_launcher_line(words: Sequence[str], command: Sequence[str]) -> list[str]:
    """Return the arguments for hvdrun if the command is a line of another launcher; empty: it is another program.

    ``hvdrun -- mpirun ...`` is ``hvdrun job run -- mpirun ...``; the flags of horovodrun are also hvdrun's. Pure.

    Parameters
    ----------
    words
        All arguments of ``hvdrun``.
    command
        The last of them: the command that they start.

    Raises
    ------
    UsageError
        The line is not preceded by ``--``, so that each rank would start a job of its own.
    """
    name = launcher_of(command)
    if not name:
        return []
    flags = list(words[: len(words) - len(command)])
    if flags[-1:] != ["--"]:
        raise UsageError(
            f"hvdrun: each rank would call {name}: write -- before it, and hvdrun reads its line: hvdrun -- {name} ... "
            f"(`env {name}` is the program itself)"
        )
    info = [_INFO_FLAGS[word] for word in command[1:2] if word in _INFO_FLAGS and name in PROGRAMS]
    return info or ([*flags[:-1], *command[1:]] if name in HOROVOD_PROGRAMS else ["job", "run", *flags, *command])
