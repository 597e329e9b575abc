"""Execution of a JobSpec by hvdrun: placed, limited, its steps in order, or its roles' own commands."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

from hvd_kernel.errors import ConfigError
from hvd_kernel.frameworks import installed
from hvd_kernel.jobs import JobSpec
from hvd_kernel.jobs.here import allocation, machine
from hvd_kernel.jobs.place import Placed, place
from hvd_kernel.jobs.readers.mpirun import still_true
from hvd_kernel.launch.job import roles, steps
from hvd_kernel.launch.job.size import agents_by
from hvd_kernel.launch.job_run import Job, current_folder
from hvd_kernel.launch.stdin import own_stdin
from hvd_kernel.processes.resources.limits import means
from hvd_kernel.settings import gpus


def execute(spec: JobSpec, *, choice: str = "", use_mpi: bool = False, verbose: bool = False) -> int:
    """Run a job; return the shell's status of the whole.

    Parameters
    ----------
    spec
        The job.
    choice
        ``--gpus``: what the ranks see, whatever the job asks for.
    use_mpi
        Have mpiexec start the ranks, with the job's parameters for it.
    verbose
        Say how limits are kept and what is started where.

    Raises
    ------
    ConfigError
        It does not fit, names no command, or needs a package that is not installed.
    """
    if not spec.steps and not any(replica.command for replica in spec.replicas):
        raise ConfigError(
            f"{spec.kind}: the job names no command: write it behind --: hvdrun job run FILE -- python train.py."
        )
    _check_installed(spec.requires)
    found = allocation(os.environ) if not any(replica.host for replica in spec.replicas) else None
    room = [(replica.host, replica.slots) for replica in found.spec.replicas] if found is not None else []
    here = machine() if not choice else machine().blind()
    placed = place(spec, here, room)
    given = dict(spec.mca) if use_mpi else {}
    for warning in still_true(placed.warnings, given):
        _say(f"hvdrun: warning: {warning}\n")
    if found is not None:
        _say(f"hvdrun: {found.sentence}\n")
    if verbose and any(placed.limits):
        _say(f"hvdrun: limits are kept {means()}\n")
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
        mpi_args=tuple(word for name, value in given.items() for word in ("--mca", name, value)),
        via="" if use_mpi else agents_by(found),
    )
    if any(replica.command for replica in spec.replicas):
        return roles.run(spec, placed, job, _say)
    return steps.run(job, spec.steps, _say).status


def _environment(spec: JobSpec, placed: Placed, choice: str) -> dict[str, str]:
    """Return what the ranks get besides this process's environment."""
    said = {variable.name: variable.value for variable in spec.environment if variable.value is not None}
    devices = choice or placed.devices
    return {"PATH": steps.own_python_first(os.environ)} | said | ({gpus.CHOICE: devices} if devices else {})


def _folder(workdir: str) -> str | None:
    """Return where steps run: the job's folder, where it is here too."""
    if workdir and not Path(workdir).is_dir():
        _say(f"hvdrun: warning: there is no {workdir} here: the job runs in {current_folder()}\n")
        return None
    return workdir or None


def _check_installed(requires: tuple[str, ...]) -> None:
    for each in requires:
        name, _, wanted = each.partition("==")
        try:
            there = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            there = ""
        if there != wanted:
            has = f"{name} {there} is" if there else f"no {name} is, but {_frameworks() or 'no framework at all'}"
            raise ConfigError(f"the job wants {name} {wanted}; {has} installed: change its version, or install it.")


def _frameworks() -> str:
    """Return the frameworks that are installed, with their versions."""
    looked = ((each.package, installed.state_of(each).version) for each in installed.FRAMEWORKS)
    return ", ".join(f"{package} {version}" for package, version in looked if version)


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
