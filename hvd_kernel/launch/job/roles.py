"""Roles with commands of their own: the first replica's is the job, the others stand by and end with it.

A platform may have a master that calls ``mpirun --hostfile /generated/hostfile`` and workers that say ``sleep
infinity``. Here ``mpirun`` is, for the master alone, a script that has hvdrun run the line.

Terms.
  stand-by  a replica's process that only holds its place
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


def run(spec: JobSpec, placed: Placed, job: Job, say: Callable[[str], None]) -> int:
    """Run the first replica's command; return its status as a shell sees it. The others' processes end with it."""
    first, *others = spec.replicas
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="hvd-job-")))
        line = first.command or " && ".join(spec.steps)
        hosts = hostfile(spec, placed)
        line = undo.enter_context(_generated(spec.hostfile, hosts, folder, line, say))
        env = os.environ | (job.env or {})
        env["PATH"] = os.pathsep.join([str(_scripts(folder / "bin")), env["PATH"]])
        undo.enter_context(_standing_by([each.command for each in others if each.command], env))
        say(f"hvdrun: {first.role} {first.index}: {line}\n")
        return _status(subprocess.Popen(["/bin/sh", "-c", line], env=env, cwd=job.cwd))  # noqa: S603 - the user's


def hostfile(spec: JobSpec, placed: Placed) -> str:
    """Return the hostfile of a job. Replicas of this machine have an address each, as hosts would."""
    names = dict(zip(((r.role, r.index) for _, r in spec.ranks()), placed.hosts, strict=True))
    lines = []
    for number, replica in enumerate(spec.replicas):
        name = names.get((replica.role, replica.index), HERE)
        shown = f"127.0.{(number + 1) // 255}.{(number + 1) % 255}" if name == HERE else name
        lines.append(f"{shown} slots={replica.slots}\n")
    return "".join(lines)


def _scripts(folder: Path) -> Path:
    """Write what stands for mpirun; return its folder."""
    folder.mkdir()
    for name in CALLED:
        (folder / name).write_text(_SCRIPT.format(python=sys.executable, name=name))
        (folder / name).chmod(0o755)
    return folder


@contextmanager
def _generated(path: str, text: str, folder: Path, line: str, say: Callable[[str], None]) -> Iterator[str]:
    """Have the hostfile where the line names it, else have the line name another; give the line."""
    if not path or path not in line:
        yield line
        return
    made = _written(Path(path), text)
    if made is None:
        other = folder / "hostfile"
        other.write_text(text)
        say(f"hvdrun: {path} cannot be made here: the command gets {other} instead\n")
        yield line.replace(path, shlex.quote(str(other)))
        return
    try:
        yield line
    finally:
        for each in made:
            with suppress(OSError):  # somebody else has put something there
                each.rmdir() if each.is_dir() else each.unlink()


def _written(path: Path, text: str) -> list[Path] | None:
    """Write a new file; return what has come into being, the file first; None: it is there already, or may not be."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    if path not in new:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError:
        return None
    return new


@contextmanager
def _standing_by(commands: Sequence[str], env: dict[str, str]) -> Iterator[None]:
    """Have the other replicas' processes beside the first one's, each in a session of its own; end them."""
    running = [ChildProcess(["/bin/sh", "-c", command], env=env, new_session=True) for command in commands]
    try:
        yield
    finally:
        for each in running:
            each.terminate()
        for each in running:
            is_ready(each.pidfd, _GRACE_S)
            each.signal(signal.SIGKILL)
            each.wait()


def _status(main: subprocess.Popen[bytes]) -> int:
    """Wait for the master; the terminal's Ctrl-C goes to it too, so it is given the time to end by itself."""
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
