"""Private MPS daemon: NVIDIA's control daemon, for the ranks of one process, or of all agents of a host; it ends last.

    agent or supervisor --starts--> nvidia-cuda-mps-control -d --> server, at the first client
            '-------- stdin --> watchdog, which stops both when this process exits for any reason

Its pipes and logs are in a private folder (0700), separate from other daemons and users. It changes no setting of a
device. A failure to start it is reported once; the ranks then take turns on the device.

The watchdog is this module as a program: ``python -P -m hvd_kernel.processes.mps.daemon FOLDER``. Its stdin closes when
the process that holds the ranks exits, even by SIGKILL. Then it makes the daemon quit, kills the remaining processes of
it and its server, and removes the folder. PDEATHSIG cannot do that, because a daemon has forked away from the process
that started it.

MPI or a cluster engine starts one agent per rank. The first agent of a run starts the daemon of the host, under a lock
for which the others wait, and writes a note with the variables that its clients need. The daemon ends with that agent:
all agents of a run end together, and if only that one is lost, its daemon is lost too, as with a client that dies.

    agent --flock--> note: {variables of the clients} <--flock-- agent
      '--> daemon
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.channel.control_channel import is_ready
from hvd_kernel.processes.lifetime import HOLDER, claim, environment_of, kill, mark
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.private_dir import is_own, private_folder

_START_S = 20.0
_END_S = 5.0  # for the watchdog; afterwards it is killed with all other children of this process
_LONGEST = 60  # characters of the pipes' folder: a socket's path is limited to about 107
_LOG, _SERVER_LOG = "control.log", "server.log"
_UP_S, _POLL_S = 5.0, 0.01
_CLIENT = """
import ctypes
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    raise SystemExit
print(driver.cuInit(0))
"""
WITHOUT = "no MPS, so ranks take turns on the device"
_OUTPUT = "said"  # file with the output of the control program


class PrivateDaemon:
    """The daemon of a process that holds ranks, started when ranks share a device. ``say`` notifies the user."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._folder: Path | None = None
        self._variables: dict[str, str] | None = None  # of its clients; None before the decision
        self._watchdog: subprocess.Popen[bytes] | None = None

    def variables(self, ranks: int, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables by which clients find the daemon, {} without one; start or restart it if necessary.

        The first call decides whether there is one: ranks that share memory on a device must use the same daemon.
        """
        if self._variables is None:
            self._variables = {}
            if decision.inspect(ranks, env).kind == "private":
                self._begin(env)
        elif self._folder is not None and not lives(self._folder / "pipes"):
            self._start(env)
        return self._variables

    def close(self) -> None:
        """Stop the daemon, after its clients."""
        if self._watchdog is not None:
            assert self._watchdog.stdin is not None
            self._watchdog.stdin.close()
            try:
                self._watchdog.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._watchdog.kill()
                self._watchdog.wait()
            self._watchdog = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _begin(self, env: Mapping[str, str]) -> None:
        try:
            folder = private_folder()
            claim(folder)
            pipes, logs = folder / "pipes", folder / "logs"
            pipes.mkdir(mode=0o700)
            logs.mkdir(mode=0o700)
        except (OSError, ClusterError) as error:
            self._report(str(error).removesuffix("."))
            return
        self._folder, self._variables = folder, {decision.PIPES: str(pipes), decision.LOGS: str(logs)}
        if not self._start(env):
            self._variables = {}
            self.close()

    def _start(self, env: Mapping[str, str]) -> bool:
        assert self._folder is not None
        daemon_env = decision.for_daemon(env) | (self._variables or {}) | {HOLDER: mark(os.getpid())}
        problem = _too_long(self._folder / "pipes") or self._watch(daemon_env) or _start(self._folder, daemon_env)
        if problem:
            self._report(problem)
        return not problem

    def _watch(self, env: Mapping[str, str]) -> str:
        if self._watchdog is None:
            command = [sys.executable, "-P", "-m", "hvd_kernel.processes.mps.daemon", str(self._folder)]
            try:
                self._watchdog = subprocess.Popen(  # noqa: S603 - our own module
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=dict(env), start_new_session=True
                )
            except OSError as error:
                return str(error)
        return ""

    def _report(self, problem: str) -> None:
        self._say(f"{WITHOUT}: {decision.CONTROL} did not start: {problem}")


def _too_long(pipes: Path) -> str:
    return (
        f"the path {pipes} is too long for its sockets: set TMPDIR to a shorter one"
        if len(str(pipes)) > _LONGEST
        else ""
    )


def _start(folder: Path, env: Mapping[str, str]) -> str:
    """Start the daemon; return why that has failed, "" if it answers."""
    output = folder / _OUTPUT
    control = shutil.which(decision.CONTROL, path=env.get("PATH"))
    if control is None:
        return "it is not installed any more"
    try:
        with output.open("wb") as out:  # not a pipe: the daemon would keep it open
            done = subprocess.run(  # noqa: S603 - NVIDIA's program
                [control, "-d"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(env),
                timeout=_START_S,
                check=False,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0 and _wait_until_up(folder / "pipes"):
        return _refusal(env, folder / "logs" / _SERVER_LOG)
    return _last_line(folder / "logs" / _LOG) or _last_line(output) or f"status {done.returncode}, and it said nothing"


def _wait_until_up(pipes: Path) -> bool:
    """Wait until the daemon answers: NVIDIA does not document its state when ``-d`` returns."""
    deadline = time.monotonic() + _UP_S
    while not (is_up := lives(pipes)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return is_up


def _refusal(env: Mapping[str, str], log: Path) -> str:
    """Run a client that initialises CUDA, for which the daemon starts its server; return why that fails, else "".

    A rank would fail too: CUDA works without MPS only if no daemon answers.
    """
    try:
        tried = subprocess.run(  # noqa: S603 - a fixed program
            [sys.executable, "-S", "-P", "-c", _CLIENT],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_START_S,
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    error_number = tried.stdout.strip()
    return (
        f"a client of it gets CUDA's error {error_number} {_last_line(log)}".rstrip()
        if error_number not in {"", "0"}
        else ""
    )


def _last_line(file: Path) -> str:
    try:
        lines = file.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


_NOTE = "mps.json"


class HostDaemon:
    """The daemon for all agents of a run on this host. The first agent starts ``daemon``."""

    def __init__(self, daemon: PrivateDaemon, say: Callable[[str], None]) -> None:
        self._daemon, self._say = daemon, say
        self._folder: Path | None = None  # of the note, if this agent has written it

    def variables(self, run: str, ranks: int, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables by which clients find the daemon, {} without one.

        Parameters
        ----------
        run
            32 hexadecimal digits that only the agents of a run have from their launcher.
        ranks
            Number of ranks on this host that share this rank's devices.
        env
            The rank's environment.
        """
        if decision.inspect(ranks, env).kind != "private":
            return {}  # and no note: other ranks of the host may have other devices
        try:
            with _locked_note(run) as note:
                variables = _read(note)
                if variables is None or _has_died(variables):
                    variables = self._daemon.variables(ranks, env)
                    self._folder = _place(run)
                    claim(self._folder)
                    _write(note, variables)
                return variables
        except (OSError, ClusterError) as error:
            self._say(f"{WITHOUT}: {str(error).removesuffix('.')}")
            return {}

    def close(self) -> None:
        """Remove the note, so that no agent finds the daemon; the owner of the daemon stops it."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _place(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"hvd-{run}"


@contextmanager
def _locked_note(run: str) -> Iterator[BinaryIO]:
    """Lock the run's note and yield it; if its folder is removed while this waits, another one is created."""
    folder = _place(run)
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        if not is_own(folder):
            raise ClusterError(f"{folder} is not this user's own folder")
        try:
            descriptor = os.open(folder / _NOTE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue
        with os.fdopen(descriptor, "r+b") as note:
            fcntl.flock(note, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                yield note
                return


def _read(note: BinaryIO) -> dict[str, str] | None:
    """Return the variables in the note; None if it is empty, or incomplete because its writer was killed."""
    try:
        variables: dict[str, str] = json.loads(note.read())
    except ValueError:
        return None
    return variables


def _write(note: BinaryIO, variables: Mapping[str, str]) -> None:
    note.seek(0)
    note.truncate()
    note.write(json.dumps(dict(variables)).encode())
    note.flush()


def _has_died(variables: Mapping[str, str]) -> bool:
    return decision.PIPES in variables and not lives(Path(variables[decision.PIPES]))


# The watchdog


_QUIT_S = 2.0


def members(pipes: Path) -> list[int]:
    """Return the processes of this user that are the daemon of these pipes, or its server."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just exited
            is_own = entry.stat().st_uid == os.geteuid()
            if is_own and (entry / "comm").read_text().strip() == decision.COMMAND:
                pid = int(entry.name)
                pids += [pid] if environment_of(pid).get(decision.PIPES) == str(pipes) else []
    return pids


def lives(pipes: Path) -> bool:
    """Return whether the daemon of these pipes runs; its server alone does not count."""
    commands = [Path(f"/proc/{pid}/cmdline") for pid in members(pipes)]
    return decision.answers(pipes) or any(decision.CONTROL.encode() in _content(command) for command in commands)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has just exited
        return b""


def _stop_daemon(folder: Path) -> None:
    """Stop the daemon with this folder and its server, and remove the folder."""
    pipes = folder / "pipes"
    if (living := members(pipes)) and (control := shutil.which(decision.CONTROL)):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(  # noqa: S603 - NVIDIA's program
                [control],
                input=b"quit\n",
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_QUIT_S,
                check=False,
            )
            _wait(living, _QUIT_S)
    for pid in members(pipes):
        kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _wait(pids: list[int], seconds: float) -> None:
    """Wait until processes have exited, for at most ``seconds`` each."""
    for pid in pids:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                is_ready(descriptor, seconds)
            finally:
                os.close(descriptor)


def main() -> None:
    """Wait for the end of stdin, and stop the daemon."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the daemon must outlive the ranks, which the holder stops first
    sys.stdin.buffer.read()
    _stop_daemon(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
