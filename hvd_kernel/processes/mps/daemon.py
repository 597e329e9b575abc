"""Private MPS daemon: NVIDIA's control daemon, for the ranks that one process holds; it ends after them.

    agent or supervisor --starts--> nvidia-cuda-mps-control -d --> server, at the first client
            '-------- stdin --> watchdog (watchdog.py), which ends both when this process ends, however that happens

Its pipes and logs are in a private folder (0700), so that no other daemon and no other user meets it. It changes no
setting of a device. That it cannot be started is said once; the ranks then take turns on the device.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hvd_kernel.errors import ClusterError
from hvd_kernel.processes.lifetime import HOLDER, claim, mark
from hvd_kernel.processes.mps import decision
from hvd_kernel.processes.mps.watchdog import lives
from hvd_kernel.processes.private_dir import private_folder

_START_S = 20.0
_END_S = 5.0  # that the watchdog may take; what is left then is killed with everything else of this process
_LONGEST = 60  # characters of the pipes' folder: names of sockets in it have about 107
_LOG, _SERVER_LOG = "control.log", "server.log"
_UP_S, _LOOK_S = 5.0, 0.01
_CLIENT = """
import ctypes
try:
    driver = ctypes.CDLL("libcuda.so.1")
except OSError:
    raise SystemExit
print(driver.cuInit(0))
"""
WITHOUT = "no MPS, so ranks take turns on the device"
_SAID = "said"  # what the program has written besides


class PrivateDaemon:
    """The daemon of a process that holds ranks: none until these share a device. ``say`` tells the user."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._folder: Path | None = None
        self._variables: dict[str, str] | None = None  # of its clients; None: nobody has asked
        self._watchdog: subprocess.Popen[bytes] | None = None

    def variables(self, ranks: int, env: Mapping[str, str]) -> dict[str, str]:
        """Return what clients find it by, {} where there is none; it is started, also anew if it has died.

        Whether there is one is decided at the first call: who shares memory on a device has to have the same.
        """
        if self._variables is None:
            self._variables = {}
            if decision.look(ranks, env).kind == "private":
                self._begin(env)
        elif self._folder is not None and not lives(self._folder / "pipes"):
            self._start(env)
        return self._variables

    def close(self) -> None:
        """End it, after its clients."""
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
            self._tell(str(error).removesuffix("."))
            return
        self._folder, self._variables = folder, {decision.PIPES: str(pipes), decision.LOGS: str(logs)}
        if not self._start(env):
            self._variables = {}
            self.close()

    def _start(self, env: Mapping[str, str]) -> bool:
        assert self._folder is not None
        own = decision.for_daemon(env) | (self._variables or {}) | {HOLDER: mark(os.getpid())}
        why = _too_long(self._folder / "pipes") or self._watch(own) or _started(self._folder, own)
        if why:
            self._tell(why)
        return not why

    def _watch(self, env: Mapping[str, str]) -> str:
        if self._watchdog is None:
            command = [sys.executable, "-P", "-m", "hvd_kernel.processes.mps.watchdog", str(self._folder)]
            try:
                self._watchdog = subprocess.Popen(  # noqa: S603 - our own module
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=dict(env), start_new_session=True
                )
            except OSError as error:
                return str(error)
        return ""

    def _tell(self, why: str) -> None:
        self._say(f"{WITHOUT}: {decision.CONTROL} did not start: {why}")


def _too_long(pipes: Path) -> str:
    return (
        f"the path {pipes} is too long for its sockets: set TMPDIR to a shorter one"
        if len(str(pipes)) > _LONGEST
        else ""
    )


def _started(folder: Path, env: Mapping[str, str]) -> str:
    """Start it; return why that has failed, "" where it answers."""
    said = folder / _SAID
    control = shutil.which(decision.CONTROL, path=env.get("PATH"))
    if control is None:
        return "it is not installed any more"
    try:
        with said.open("wb") as out:  # no pipe: the daemon keeps it
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
    if done.returncode == 0 and _comes_up(folder / "pipes"):
        return _refusal(env, folder / "logs" / _SERVER_LOG)
    return _last_line(folder / "logs" / _LOG) or _last_line(said) or f"status {done.returncode}, and it said nothing"


def _comes_up(pipes: Path) -> bool:
    """Wait for it: nothing is documented of what is there when ``-d`` returns."""
    deadline = time.monotonic() + _UP_S
    while not (there := lives(pipes)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return there


def _refusal(env: Mapping[str, str], log: Path) -> str:
    """Try it with a client that initialises CUDA, for which the daemon starts the server; return why that fails.

    A rank would fail of it: CUDA goes on without MPS only where no daemon answers.
    """
    try:
        tried = subprocess.run(  # noqa: S603 - our own words
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
