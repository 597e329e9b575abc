"""Real processes as ranks: a pool that runs functions of the test files on all of them, and leaves no process.

Terms.
  check    a function of a test file that runs on every rank and returns JSON
  gone     ranks that a check is meant to lose, with the exit status they end with
  overdue  a rank that lives and has not answered in time: it says what it waits for and where, and is ended
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

TESTS = Path(__file__).resolve().parents[1]
# Where device time is short, a check that hangs must not cost minutes: tools/gpu/check.sh sets the most that one may have.
LONGEST_S = float(os.environ.get("HVDTEST_LONGEST_S", "inf"))
ENDED_WITHIN_S = min(60.0, LONGEST_S)
TOLD_WITHIN_S = 20.0  # an answer takes milliseconds: a rank that is silent for longer cannot run Python
_LAUNCHERS = ("HOROVOD_", "HVD_", "OMPI_", "PMI", "PRTE_", "TORCHELASTIC_", "MASTER_")
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def free_port() -> int:
    """Return a port outside of the kernel's range for automatic ports: it stays free until its rank has started."""
    first_given = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(min(10_000, first_given - 1), first_given)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def clean_environment(**more: str) -> dict[str, str]:
    """Ours, without anything a launcher may have left in it, with the tests importable and one thread per rank."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS) and k not in _RANKS}
    return env | {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | more


def horovod_variables(rank: int, size: int, port: int) -> dict[str, str]:
    return {
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_CONTROLLER_ADDR": "127.0.0.1",
        "HOROVOD_CONTROLLER_PORT": str(port),
    }


def torch_variables(rank: int, size: int, port: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


class RankPool:
    """np processes with their rank in the environment; each runs checks until the pool is closed.

    Libraries find no other ranks by torchrun's variables unless ``env`` has HVD_TORCH="on".
    """

    user: Path | None = None  # the file of tests that has it, where several share it

    def __init__(
        self,
        np: int,
        transport: str = "auto",
        variables: Callable[[int, int, int], Mapping[str, str]] = horovod_variables,
        python: str | Path = sys.executable,
        **env: str,
    ) -> None:
        assert "HVDTEST_RANK" not in os.environ, "a rank must not start ranks: guard the file with __name__"
        self.np, self.transport, self.broken = np, transport, False
        self.folder = tempfile.TemporaryDirectory(prefix="hvdtest-")
        port = free_port()
        self.ranks = [
            _Rank(
                Path(self.folder.name),
                {
                    **variables(rank, np, port),
                    "HVD_TRANSPORT": transport,
                    "HVD_TORCH": "off",
                    "HVDTEST_RANK": "1",
                    **env,
                },
                rank,
                python,
            )
            for rank in range(np)
        ]

    def run(
        self, check: Callable[..., Any], *args: Any, timeout: float = 120.0, gone: Mapping[int, int] | None = None
    ) -> list[Any]:
        """Run the check on every rank; return the results in rank order, None for exited ranks."""
        gone, timeout = gone or {}, min(timeout, LONGEST_S)
        call = {"file": check.__code__.co_filename, "function": check.__name__, "args": args}
        try:
            for rank in self.ranks:
                rank.ask(json.dumps(call))
            deadline = time.monotonic() + timeout
            answers = [rank.answer(deadline) for rank in self.ranks]
        except BaseException as error:  # the test's time is over, or Ctrl-C
            error.add_note(self._who_waits_where(check.__name__))
            raise
        if any(rank.overdue() for rank in self.ranks):
            raise AssertionError(self._who_waits_where(check.__name__))
        wrong = [
            f"--- rank {number}: {(answer or {}).get('error') or rank.end()}"
            for number, (rank, answer) in enumerate(zip(self.ranks, answers, strict=True))
            if not (_went(rank, gone.get(number)) if answer is None else "result" in answer)
        ]
        if wrong:
            self.broken = True
            raise AssertionError(f"{check.__name__} failed\n" + "\n".join(wrong))
        return [answer and answer["result"] for answer in answers]

    def _who_waits_where(self, check: str) -> str:
        """Return the report of every rank, then kill the ranks, as their state is unknown."""
        self.broken = True
        for rank in self.ranks:
            rank.ask_where()
        deadline = time.monotonic() + min(TOLD_WITHIN_S, LONGEST_S)
        told = [rank.where(deadline) for rank in self.ranks]
        for rank in self.ranks:
            rank.process.kill()
        return f"{check} is overdue\n" + "\n".join(f"--- rank {number}: {each}" for number, each in enumerate(told))

    def close(self) -> None:
        """Stop the processes, and check that none is left. (The core's shared memory is unnamed: it is freed with them.)"""
        for rank in self.ranks:
            rank.close()
        deadline = time.monotonic() + ENDED_WITHIN_S
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.01)  # children of a rank notice its exit, and exit
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        self.folder.cleanup()
        assert not left, f"processes of the ranks are still there: {left}"

    def _left(self) -> list[int]:
        return [pid for rank in self.ranks for pid in members_of_session(rank.process.pid)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Rank:
    """One process: a line of JSON in, a line of JSON out, its output in a file."""

    def __init__(self, folder: Path, env: Mapping[str, str], rank: int, python: str | Path = sys.executable) -> None:
        self.output = folder / f"rank{rank}.txt"
        self._answers, theirs = os.pipe()
        self._watch, watched = socket.socketpair()
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [str(python), "-P", "-m", "hvdtest.rank", str(theirs), str(watched.fileno())],
                env=clean_environment(**env),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[theirs, watched.fileno()],
                start_new_session=True,
            )
        os.close(theirs)
        watched.close()
        self._text = b""
        self._owes = False  # an answer
        self._said = 0  # bytes of its output when its stacks were requested

    def ask(self, call: str) -> None:
        """Send a request; a rank that exited before it is noticed by its missing answer."""
        assert self.process.stdin is not None
        self._owes = True
        with suppress(BrokenPipeError):
            self.process.stdin.write(call.encode() + b"\n")
            self.process.stdin.flush()

    def answer(self, deadline: float) -> dict[str, Any] | None:
        """None: the process ended, or is silent."""
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._answers, 1 << 16) if ready else b""
            if not more:
                self._owes = not ready
                return None
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        self._owes = False
        answer: dict[str, Any] = json.loads(line)
        return answer

    def overdue(self) -> bool:
        return self._owes

    def ask_where(self) -> None:
        self._said = self.output.stat().st_size
        with suppress(OSError):
            self._watch.sendall(b"?")

    def where(self, deadline: float) -> str:
        """Return the wait and the stacks of a rank; faulthandler writes those of a rank that cannot run Python as it aborts."""
        if not self._owes or self.answer(deadline=0) or not self._owes:
            return "has answered, or has ended"
        with suppress(OSError):
            self._watch.settimeout(max(0.01, deadline - time.monotonic()))
            self._watch.recv(1)
            return _tail(self.output, self._said)
        self.process.send_signal(signal.SIGABRT)
        return f"runs no Python, exit status {self.end_status()}\n{_tail(self.output, self._said)}"

    def end_status(self) -> int | None:
        try:
            return self.process.wait(ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> str:
        return f"no answer, exit status {self.end_status()}\n{_tail(self.output)}"

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has not received all requests
            self.process.stdin.close()
        try:
            self.process.wait(ENDED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the rank did not end by itself\n{_tail(self.output)}") from None
        finally:
            os.close(self._answers)
            self._watch.close()


def _tail(output: Path, begin: int = 0) -> str:
    return output.read_bytes()[begin:].decode(errors="replace")[-8000:]


def _went(rank: _Rank, status: int | None) -> bool:
    """Return whether a rank without an answer exited as intended; None if no exit was intended."""
    return status is not None and rank.end_status() == status


def members_of_session(leader: int) -> list[int]:
    """Processes of a session that are still running; the session's number is its leader's."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(entry.name))
    return found
