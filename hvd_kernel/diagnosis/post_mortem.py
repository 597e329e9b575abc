"""Post-mortem of a rank: turns the evidence that it and the system left into a sentence and a stack. Pure.

Terms.
  status     the rank's wait status (a signal or an exit code), as waitpid returned it to its parent; None if unknown
  note       the file that the rank itself wrote at its end (worker/crash.py): stacks of a crash, or how it exited
  native     Open MPI's stack of C functions, from its own handler; absent if the stack was unreadable
  cause      one clause for a sentence ("killed (SIGKILL)") and the stack below it

The first available evidence decides, in this order: a limit of the rank's own, the out-of-memory killer (its counter
and SIGKILL together), mpiexec's exit, the signal, the rank's note, the exit code. Without any of them the cause is
reported as unknown, never guessed.
"""

from __future__ import annotations

import os
import re
import signal
from dataclasses import dataclass

from hvd_kernel.diagnosis.inquiry import below_signal
from hvd_kernel.formatting.units import decimal_size

UNKNOWN = "it ended for an unknown reason"
MAX_PYTHON = 20
MAX_NATIVE = 14

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$')
_CELL = re.compile(r"ipykernel_\d+/\d+\.py$")
_NATIVE = re.compile(r"\] \[ ?\d+\] (?P<place>.*)\[0x[0-9a-f]+\]$")
_FATAL = re.compile(r"^Fatal Python error: (?P<what>.+)$", re.MULTILINE)
_LEFT = re.compile(r"^left (?P<how>.+)$", re.MULTILINE)
_IPYTHON = ("IPython/core/interactiveshell.py", "run_code")
_SIGTERM_HANDLER = "_signal_stop"
_OUR_OWN = "hvd_kernel/worker/crash.py"
SIGNALS = {signal.strsignal(number) or "": int(number) for number in signal.valid_signals()}


@dataclass(frozen=True)
class Evidence:
    """What a dead rank and the system left."""

    status: int | None = None
    note: str = ""
    native: str = ""
    out_of_memory: bool = False  # its memory cgroup has killed a process since the cell began
    limit: int = 0  # of that cgroup, bytes; 0: none
    resident: int = 0  # bytes, when last seen
    launcher: str = ""  # how mpiexec exited, if that is the cause
    exceeded: str = ""  # sentence about the limit of its own for which it was killed


@dataclass(frozen=True)
class Cause:
    """Why a rank died."""

    text: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class StackFrame:
    """One line of a Python stack."""

    file: str
    line: int
    function: str

    @property
    def of_cell(self) -> bool:
        """True if it is in a cell, not in a file."""
        return _CELL.search(self.file) is not None

    def __str__(self) -> str:
        place = "a cell" if self.of_cell else self.file
        return f"{place}, line {self.line}" + (f", in {self.function}()" if self.function != "<module>" else "")


def cause(evidence: Evidence) -> Cause:
    """Return why the rank died."""
    fatal = _signal(evidence)
    if evidence.exceeded:
        return Cause(evidence.exceeded)
    if fatal == signal.SIGKILL and evidence.out_of_memory:
        return Cause(_memory(evidence))
    if evidence.launcher:
        return Cause(evidence.launcher)
    if fatal is None:
        return _exit(evidence)
    frames = _frames(evidence.note)
    return Cause(f"{signal_words(fatal)}{_at(frames)}", (*_python(frames), *_c(evidence.native)))


def known(evidence: Evidence) -> bool:
    """Return whether the evidence is complete enough to stop waiting for more."""
    return evidence.status is not None or bool(evidence.launcher)


def status_in_log(log: str, pid: int) -> int | None:
    """Return a rank's wait status as mpiexec's log reports it; None if it does not."""
    reaped = re.findall(rf"child process \[(\S+)\] pid {pid} terminated$", log, re.MULTILINE)
    if not reaped:
        return None
    rank = re.escape(reaped[-1])
    killed = re.findall(rf"waitpid_fired child process \[{rank}\] terminated with signal (.+)$", log, re.MULTILINE)
    if killed:
        return SIGNALS.get(killed[-1].removesuffix(" (core dumped)"))
    left = re.findall(rf"waitpid_fired child \[{rank}\] exit code (\d+)$", log, re.MULTILINE)
    return int(left[-1]) << 8 if left else None


def launcher_exit(status: int | None) -> str:
    """Describe an exit of mpiexec that ended its ranks; status None: an exit of the supervisor."""
    if status is None:
        return "the cluster's supervisor has ended, and its ranks with it"
    how = f"was {signal_words(-status)}" if status < 0 else f"ended with exit status {status}"
    return f"mpiexec, which holds the ranks, {how}"


def _signal(evidence: Evidence) -> int | None:
    if evidence.status is not None:
        return os.WTERMSIG(evidence.status) if os.WIFSIGNALED(evidence.status) else None
    fatal = _FATAL.findall(evidence.note)
    return SIGNALS.get(fatal[-1]) if fatal else None


def _exit(evidence: Evidence) -> Cause:
    frames, left = _frames(evidence.note), _left(evidence.note)
    if frames and frames[0].function == _SIGTERM_HANDLER:
        return Cause("it was terminated (SIGTERM)")
    if left:
        return Cause(f"it exited {left}{_at(frames)}", tuple(_python(frames)))
    if evidence.status is not None:
        return Cause(f"it exited with status {os.waitstatus_to_exitcode(evidence.status)}")
    return Cause(UNKNOWN)


def signal_words(number: int) -> str:
    """Return the phrase for a death by a signal: ``killed (SIGKILL)``, ``segmentation fault (SIGSEGV)``."""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"  # most real-time ones
    return f"{(signal.strsignal(number) or 'ended').lower()} ({name})"


def _left(note: str) -> str:
    exits = _LEFT.findall(note)
    return exits[-1] if exits else ""


def _memory(evidence: Evidence) -> str:
    held = f"it held {decimal_size(evidence.resident)} when last seen"
    if not evidence.limit:
        return f"out of memory: the machine had none left ({held})"
    return f"out of memory (cgroup limit {decimal_size(evidence.limit)}; {held})"


def _frames(note: str) -> list[StackFrame]:
    """Return the stack of the last crash or exit in the note, innermost first, without IPython's part."""
    blocks = re.split(r"^(?=Current thread|Thread 0x|Stack \(most)", note, flags=re.MULTILINE)
    crashed = [block for block in blocks if block.startswith(("Current thread", "Stack"))]
    matches = filter(None, map(_FRAME.match, _last_lines(crashed)))
    frames = [StackFrame(match["file"], int(match["line"]), match["function"]) for match in matches]
    shown = [frame for frame in frames if not frame.file.endswith(_OUR_OWN)]
    file, function = _IPYTHON
    ends = [at for at, frame in enumerate(shown) if frame.file.endswith(file) and frame.function == function]
    return shown[: ends[0]] if ends else shown


def _last_lines(blocks: list[str]) -> list[str]:
    return blocks[-1].splitlines() if blocks else []


def _at(frames: list[StackFrame]) -> str:
    """Return the place of the crash: the innermost line of a cell if there is one, because the user wrote that."""
    place = next((frame for frame in frames if frame.of_cell), frames[0] if frames else None)
    return f" in {place}" if place else ""


def _python(frames: list[StackFrame]) -> list[str]:
    return _bounded("its Python stack, most recent call first:", [str(frame) for frame in frames], MAX_PYTHON)


def _c(native: str) -> list[str]:
    places = [match["place"] for match in map(_NATIVE.search, native.splitlines()) if match]
    return _bounded("in C, innermost first:", list(below_signal(places)), MAX_NATIVE)


def _bounded(title: str, lines: list[str], most: int) -> list[str]:
    more = [f"  … and {len(lines) - most} more"] if len(lines) > most else []
    return [title, *(f"  {line}" for line in lines[:most]), *more] if lines else []
