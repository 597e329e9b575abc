"""Execution of a JobSpec by hvdrun: placement, limits, and its steps in order or the commands of its roles.

A step is a line that all ranks run. Its ranks exit before those of the next step start; the first failure ends the job.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hvd_kernel.errors import ConfigError
from hvd_kernel.frameworks import installed
from hvd_kernel.jobs import JobSpec
from hvd_kernel.jobs.here import allocation, machine
from hvd_kernel.jobs.place import Placed, place
from hvd_kernel.jobs.readers.mpirun import still_true
from hvd_kernel.jobs.shell_words import is_plain
from hvd_kernel.launch.forwarding import own_stdin
from hvd_kernel.launch.job import roles
from hvd_kernel.launch.job.size import agent_launcher
from hvd_kernel.launch.job_run import Job, Outcome, current_folder, launch
from hvd_kernel.processes.limits import means
from hvd_kernel.settings import gpus

_SHELL = "/bin/sh"


def execute(spec: JobSpec, *, choice: str = "", use_mpi: bool = False, verbose: bool = False) -> int:
    """Run a job; return its status as a shell reports it.

    Parameters
    ----------
    spec
        The job.
    choice
        ``--gpus``: the devices of the ranks, regardless of the job's request.
    use_mpi
        Start the ranks with mpiexec, with the job's parameters for it.
    verbose
        Log how limits are enforced and what is started where.

    Raises
    ------
    ConfigError
        The job does not fit, has no command, or needs a package that is not installed.
    """
    if not spec.steps and not any(replica.command for replica in spec.replicas):
        raise ConfigError(
            f"{spec.kind}: the job names no command: write it behind --: hvdrun job run FILE -- python train.py."
        )
    _check_installed(spec.requires)
    allocated = allocation(os.environ) if not any(replica.host for replica in spec.replicas) else None
    room = [(replica.host, replica.slots) for replica in allocated.spec.replicas] if allocated is not None else []
    devices = machine() if not choice else machine().blind()
    placed = place(spec, devices, room)
    mca = dict(spec.mca) if use_mpi else {}
    for warning in still_true(placed.warnings, mca):
        _log(f"hvdrun: warning: {warning}\n")
    if allocated is not None:
        _log(f"hvdrun: {allocated.sentence}\n")
    if verbose and any(placed.limits):
        _log(f"hvdrun: limits are kept {means()}\n")
    job = Job(
        command=["true"],  # each step has its own
        np=spec.size,
        hosts=placed.spelled,
        env=_environment(spec, placed, choice),
        cwd=_folder(spec.workdir),
        limits=placed.limits if any(placed.limits) else (),
        stdin=own_stdin(),
        verbose=verbose,
        use_mpi=use_mpi,
        mpi_args=tuple(word for name, value in mca.items() for word in ("--mca", name, value)),
        via="" if use_mpi else agent_launcher(allocated),
    )
    if any(replica.command for replica in spec.replicas):
        return roles.run(spec, placed, job, _log)
    return _run_steps(job, spec.steps).status


def _environment(spec: JobSpec, placed: Placed, choice: str) -> dict[str, str]:
    """Return the variables of the ranks besides this process's environment."""
    variables = {variable.name: variable.value for variable in spec.environment if variable.value is not None}
    devices = choice or placed.devices
    return {"PATH": _own_python_first(os.environ)} | variables | ({gpus.CHOICE: devices} if devices else {})


def _folder(workdir: str) -> str | None:
    """Return the directory of the steps: the job's, if it exists on this machine; None: the current one."""
    if workdir and not Path(workdir).is_dir():
        _log(f"hvdrun: warning: there is no {workdir} here: the job runs in {current_folder()}\n")
        return None
    return workdir or None


def _check_installed(requires: tuple[str, ...]) -> None:
    for requirement in requires:
        name, _, required = requirement.partition("==")
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        if version != required:
            has = f"{name} {version} is" if version else f"no {name} is, but {_frameworks() or 'no framework at all'}"
            raise ConfigError(f"the job wants {name} {required}; {has} installed: change its version, or install it.")


def _frameworks() -> str:
    """Return the installed frameworks with their versions."""
    versions = ((framework.package, installed.state_of(framework).version) for framework in installed.FRAMEWORKS)
    return ", ".join(f"{package} {version}" for package, version in versions if version)


def _log(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _run_steps(job: Job, steps: Sequence[str]) -> Outcome:
    """Run each step on all ranks, instead of its command; return the last outcome. The first step reads stdin."""
    outcome = Outcome(())
    for number, step in enumerate(steps, 1):
        if len(steps) > 1:
            _log(f"hvdrun: step {number} of {len(steps)}: {step}\n")
        outcome = launch(replace(job, command=_command(step), stdin=job.stdin if number == 1 else -1))
        if outcome.status:
            if number < len(steps):
                _log(f"hvdrun: step {number} failed: the {len(steps) - number} after it do not run.\n")
            break
    return outcome


def _command(step: str) -> list[str]:
    """Return the words of a step; a step with shell syntax is run by a shell."""
    return shlex.split(step) if is_plain(step) else [_SHELL, "-c", step]


def _own_python_first(env: Mapping[str, str]) -> str:
    """Return a PATH on which ``python`` is the one that runs hvdrun, in place of the one in the job's image."""
    folder = str(Path(sys.executable).parent)
    others = (entry for entry in env.get("PATH", os.defpath).split(os.pathsep) if entry != folder)
    return os.pathsep.join([folder, *others])
