"""Roles with commands of their own: the first replica runs the job, the others stand by and end with it.

A platform may have a master that calls ``mpirun --hostfile /generated/hostfile`` and workers that run ``sleep
infinity``. For the master alone, ``mpirun`` is a script that passes its arguments to hvdrun.

Terms.
  stand-by  a process of a replica that does no work itself
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hvd_kernel.jobs import JobSpec
from hvd_kernel.jobs.place import HERE, Placed
from hvd_kernel.launch.job_run import Job
from hvd_kernel.processes.channel.control_channel import is_ready
from hvd_kernel.processes.child_process import ChildProcess

CALLED = ("mpirun", "mpiexec", "horovodrun")
_GRACE_S = 5.0
_SCRIPT = """#!{python}
import sys
from hvd_kernel.launch.cli.main import main
sys.exit(main(["job", "run", "--quiet", "--", {name!r}, *sys.argv[1:]]))
"""


def run(spec: JobSpec, placed: Placed, job: Job, log: Callable[[str], None]) -> int:
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
