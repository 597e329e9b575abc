"""Execution of a JobSpec by hvdrun: placement, limits, and its steps in order or the commands of its roles.

A step is a line that all ranks run. Its ranks exit before those of the next step start; the first failure ends the job.

With roles the first replica's command runs the job, and the other replicas stand by and end with it. A platform may
have a master that calls ``mpirun --hostfile /generated/hostfile`` and workers that run ``sleep infinity``. For the
master alone, ``mpirun`` is a script that passes its arguments to hvdrun.
"""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from hvd_kernel.errors import ConfigError
from hvd_kernel.frameworks import installed
from hvd_kernel.jobs import JobSpec
from hvd_kernel.jobs.here import allocation, machine
from hvd_kernel.jobs.place import HERE, Placed, place
from hvd_kernel.jobs.readers.mpirun import still_true
from hvd_kernel.jobs.shell_lines import is_plain
from hvd_kernel.launch.forwarding import own_stdin
from hvd_kernel.launch.job_run import Job, current_folder, launch
from hvd_kernel.launch.outcome import Outcome
from hvd_kernel.launch.output_sinks import write_stderr
from hvd_kernel.launch.placement import agent_launcher, allocated_cores
from hvd_kernel.processes.channel.control_channel import is_ready
from hvd_kernel.processes.child_process import ChildProcess
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
        write_stderr(f"hvdrun: warning: {warning}\n")
    if allocated is not None:
        write_stderr(f"hvdrun: {allocated.sentence}\n")
    if verbose and any(placed.limits):
        write_stderr(f"hvdrun: limits are kept {means()}\n")
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
        cores=allocated_cores(allocated),
    )
    if any(replica.command for replica in spec.replicas):
        return _run_roles(spec, placed, job, write_stderr)
    return _run_steps(job, spec.steps).status


def _environment(spec: JobSpec, placed: Placed, choice: str) -> dict[str, str]:
    """Return the variables of the ranks besides this process's environment."""
    variables = {variable.name: variable.value for variable in spec.environment if variable.value is not None}
    devices = choice or placed.devices
    return {"PATH": _own_python_first(os.environ)} | variables | ({gpus.CHOICE: devices} if devices else {})


def _folder(workdir: str) -> str | None:
    """Return the directory of the steps: the job's, if it exists on this machine; None: the current one."""
    if workdir and not Path(workdir).is_dir():
        write_stderr(f"hvdrun: warning: there is no {workdir} here: the job runs in {current_folder()}\n")
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


def _run_steps(job: Job, steps: Sequence[str]) -> Outcome:
    """Run each step on all ranks, instead of its command; return the last outcome. The first step reads stdin."""
    outcome = Outcome(())
    for number, step in enumerate(steps, 1):
        if len(steps) > 1:
            write_stderr(f"hvdrun: step {number} of {len(steps)}: {step}\n")
        outcome = launch(replace(job, command=_command(step), stdin=job.stdin if number == 1 else -1))
        if outcome.status:
            if number < len(steps):
                write_stderr(f"hvdrun: step {number} failed: the {len(steps) - number} after it do not run.\n")
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


# Roles with commands of their own


CALLED = ("mpirun", "mpiexec", "horovodrun")
_GRACE_S = 5.0
_SCRIPT = """#!{python}
import sys
from hvd_kernel.launch.cli.main import main
sys.exit(main(["job", "run", "--quiet", "--", {name!r}, *sys.argv[1:]]))
"""


def _run_roles(spec: JobSpec, placed: Placed, job: Job, log: Callable[[str], None]) -> int:
    """Run the first replica's command; return its status as a shell reports it. The other replicas end with it."""
    first, *others = spec.replicas
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="hvd-job-")))
        line = first.command or " && ".join(spec.steps)
        hosts = hostfile(spec, placed)
        line = undo.enter_context(_generated(spec.hostfile, hosts, folder, line, log))
        env = os.environ | (job.env or {})
        env["PATH"] = os.pathsep.join([str(_scripts(folder / "bin")), env["PATH"]])
        undo.enter_context(_standing_by([replica.command for replica in others if replica.command], env))
        log(f"hvdrun: {first.role} {first.index}: {line}\n")
        return _status(subprocess.Popen(["/bin/sh", "-c", line], env=env, cwd=job.cwd))  # noqa: S603 - the user's


def hostfile(spec: JobSpec, placed: Placed) -> str:
    """Return the hostfile of a job. Replicas on this machine get an address each, like hosts."""
    names = dict(zip(((r.role, r.index) for _, r in spec.ranks()), placed.hosts, strict=True))
    lines = []
    for number, replica in enumerate(spec.replicas):
        name = names.get((replica.role, replica.index), HERE)
        shown = f"127.0.{(number + 1) // 255}.{(number + 1) % 255}" if name == HERE else name
        lines.append(f"{shown} slots={replica.slots}\n")
    return "".join(lines)


def _scripts(folder: Path) -> Path:
    """Write the scripts that replace mpirun; return their folder."""
    folder.mkdir()
    for name in CALLED:
        (folder / name).write_text(_SCRIPT.format(python=sys.executable, name=name))
        (folder / name).chmod(0o755)
    return folder


@contextmanager
def _generated(path: str, text: str, folder: Path, line: str, log: Callable[[str], None]) -> Iterator[str]:
    """Write the hostfile to the path in the command, or to a temporary one put into the command; yield the command."""
    if not path or path not in line:
        yield line
        return
    created = _write_new(Path(path), text)
    if created is None:
        other = folder / "hostfile"
        other.write_text(text)
        log(f"hvdrun: {path} cannot be made here: the command gets {other} instead\n")
        yield line.replace(path, shlex.quote(str(other)))
        return
    try:
        yield line
    finally:
        for created_path in created:
            with suppress(OSError):  # a folder that contains other files by now
                created_path.rmdir() if created_path.is_dir() else created_path.unlink()


def _write_new(path: Path, text: str) -> list[Path] | None:
    """Write a new file; return the file and the folders that were created; None if it exists or cannot be written."""
    missing = [ancestor for ancestor in (path, *path.parents) if not ancestor.exists()]
    if path not in missing:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError:
        return None
    return missing


@contextmanager
def _standing_by(commands: Sequence[str], env: dict[str, str]) -> Iterator[None]:
    """Run the other replicas' processes beside the first one's, each in a session of its own; stop them at the end."""
    running = [ChildProcess(["/bin/sh", "-c", command], env=env, new_session=True) for command in commands]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            is_ready(process.pidfd, _GRACE_S)
            process.signal(signal.SIGKILL)
            process.wait()


def _status(main: subprocess.Popen[bytes]) -> int:
    """Wait for the master and return its status. It gets the terminal's Ctrl-C too, so it has time to exit itself."""
    try:
        code = main.wait()
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired):
            main.wait(_GRACE_S)
        if main.poll() is None:
            main.terminate()
            main.wait()
        raise
    return code if code >= 0 else 128 - code
