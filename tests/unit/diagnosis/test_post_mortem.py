"""From the remains of a dead rank to the sentence and the stack that a cell shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvd_kernel.cluster.failure import dead_ranks, log_tail, rank_died
from hvd_kernel.diagnosis import recorder
from hvd_kernel.diagnosis.post_mortem import (
    MAX_NATIVE,
    MAX_PYTHON,
    UNKNOWN,
    Cause,
    Evidence,
    cause,
    known,
    launcher_exit,
    status_in_log,
)
from hvd_kernel.diagnosis.recorder import Recorder, memory_group
from hvd_kernel.processes import leftovers
from hvd_kernel.processes.lifetime import HOLDER, claim, holder_of, is_gone, mark

PATIENCE_S = 60.0
CRASH = """Fatal Python error: Segmentation fault

Thread 0x00007f7bba62a6c0 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 468 in select
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f81c888eb80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/tmp/ipykernel_14485/120693895.py", line 3 in boom
  File "/tmp/ipykernel_14485/120693895.py", line 4 in <module>
  File "/venv/site-packages/IPython/core/interactiveshell.py", line 3823 in run_code
  File "/venv/site-packages/hvd_kernel/worker/engine.py", line 32 in run_code

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""
NATIVE = """[vm:29102] *** Process received signal ***
[vm:29102] Signal: Segmentation fault (11)
[vm:29102] Signal code:  (-6)
[vm:29102] Failing at address: 0x71ae
[vm:29102] [ 0] /lib/libc.so.6(+0x3c050)[0x7fe35c45a050]
[vm:29102] [ 1] /lib/libc.so.6(+0x8aeec)[0x7fe35c4a8eec]
[vm:29102] [ 2] /lib/libc.so.6(gsignal+0x12)[0x7fe35c459fb2]
[vm:29102] [ 3] /lib/libc.so.6(+0x3c050)[0x7fe35c45a050]
[vm:29102] [ 4] /lib/libc.so.6(+0x167ad8)[0x7fe35c585ad8]
[vm:29102] [ 5] /lib/lib-dynload/_ctypes.so(+0x8608)[0x7fe35bf88608]
[vm:29102] [ 6] /lib/libffi.so.8(ffi_call+0xcd)[0x7fe35bf70b0d]
[vm:29102] [ 7] /lib/libpython3.11.so.1.0(_PyEval_EvalFrameDefault+0x2e53)[0x7fe35c6fd9c3]
[vm:29102] [ 8] /lib/libpython3.11.so.1.0(PyEval_EvalCode+0x224)[0x7fe35c8508e4]
[vm:29102] *** End of error message ***
"""
LEFT = """left with os._exit(3)
Stack (most recent call first):
  File "/venv/site-packages/hvd_kernel/worker/crash.py", line 37 in say
  File "/venv/site-packages/hvd_kernel/worker/crash.py", line 43 in _exit
  File "/tmp/ipykernel_6165/77.py", line 2 in <module>
  File "/venv/site-packages/IPython/core/interactiveshell.py", line 3823 in run_code
"""
TOLD = LEFT.replace("_exit(3)", "_exit(0)").replace(
    'File "/tmp/ipykernel_6165/77.py", line 2 in <module>',
    'File "/venv/site-packages/hvd_kernel/worker/engine.py", line 99 in _signal_stop',
)
LOG = """[vm:1] [prterun-vm-1@0,0] odls:wait_local_proc child process [prterun-vm-1@1,0] pid 30 terminated
[vm:1] [prterun-vm-1@0,0] odls:waitpid_fired child process [prterun-vm-1@1,0] terminated with signal Killed
[vm:1] [prterun-vm-1@0,0] odls:wait_local_proc child process [prterun-vm-1@1,10] pid 31 terminated
[vm:1] [prterun-vm-1@0,0] odls:waitpid_fired child [prterun-vm-1@1,10] exit code 3
[vm:1] [prterun-vm-1@0,0] odls:waitpid_fired child process [prterun-vm-1@1,10] terminated with non-zero status
[vm:1] [prterun-vm-1@0,0] odls:wait_local_proc child process [prterun-vm-1@1,1] pid 303 terminated
[vm:1] [prterun-vm-1@0,0] odls:waitpid_fired child process [prterun-vm-1@1,1] terminated with signal Segmentation fault (core dumped)
[vm:1] [prterun-vm-1@0,0] odls:wait_local_proc child process [prterun-vm-1@1,2] pid 304 terminated
"""


def test_a7_segmentation_fault_has_its_line_and_both_stacks() -> None:
    found = cause(Evidence(status=int(signal.SIGSEGV), note=CRASH, native=NATIVE))
    assert found == Cause(
        "segmentation fault (SIGSEGV) in a cell, line 3, in boom()",
        (
            "its Python stack, most recent call first:",
            "  /usr/lib/python3.11/ctypes/__init__.py, line 519, in string_at()",
            "  a cell, line 3, in boom()",
            "  a cell, line 4",
            "in C, innermost first:",
            "  libc.so.6(+0x167ad8)",
            "  _ctypes.so(+0x8608)",
            "  libffi.so.8(ffi_call+0xcd)",
        ),
    )


def test_a7_the_crash_file_alone_names_the_signal() -> None:
    assert cause(Evidence(note=CRASH)).text == "segmentation fault (SIGSEGV) in a cell, line 3, in boom()"
    assert cause(Evidence(note="Fatal Python error: Aborted\n")).text == "aborted (SIGABRT)"


def test_a7_without_a_stack_the_signal_stands_alone() -> None:
    assert cause(Evidence(status=int(signal.SIGSEGV) | 0x80)) == Cause("segmentation fault (SIGSEGV)")
    unreadable = "\n".join(NATIVE.splitlines()[:8])  # a call through a null pointer: nothing below the signal
    assert cause(Evidence(status=int(signal.SIGBUS), native=unreadable)) == Cause("bus error (SIGBUS)")


def test_a7_file_of_the_user_is_named_outside_cells() -> None:
    note = CRASH.replace("/tmp/ipykernel_14485/120693895.py", "/home/me/model.py")
    said = cause(Evidence(status=11, note=note)).text
    assert said == "segmentation fault (SIGSEGV) in /usr/lib/python3.11/ctypes/__init__.py, line 519, in string_at()"


def test_a7_endless_recursion_shows_a_bounded_stack() -> None:
    note = CRASH.replace("line 4 in <module>\n", "line 4 in down\n" + '  File "/x/a.py", line 1 in down\n' * 500)
    native = NATIVE.replace("[vm:29102] [ 5]", "[vm:29102] [ 5] /lib/x.so(+0x1)[0x1]\n" * 90 + "[vm:29102] [ 5]")
    lines = cause(Evidence(status=11, note=note, native=native)).lines
    assert len(lines) <= 4 + MAX_PYTHON + MAX_NATIVE <= 40
    assert sum(line.startswith("  … and ") for line in lines) == 2


def test_a8_exit_is_named_with_its_line() -> None:
    assert cause(Evidence(status=3 << 8, note=LEFT)).text == "it exited with os._exit(3) in a cell, line 2"
    assert (
        cause(Evidence(status=0, note=LEFT.replace("3", "0", 1))).text == "it exited with os._exit(0) in a cell, line 2"
    )
    assert cause(Evidence(status=0)).text == "it exited with status 0"
    assert cause(Evidence(status=0, note=TOLD)).text == "it was terminated (SIGTERM)"
    both = "left because its interpreter came to an end\nStack (most recent call first):\n" + TOLD
    assert cause(Evidence(status=0, note=both)).text == "it was terminated (SIGTERM)"


def test_a8_kill_after_the_record_of_an_exit_is_a_kill() -> None:
    assert cause(Evidence(status=9, note=LEFT.replace("Stack", "Gone"))).text == "killed (SIGKILL)"


def test_a14_out_of_memory_needs_the_killers_count_and_sigkill() -> None:
    said = "out of memory (cgroup limit 300 MB; it held 281 MB when last seen)"
    evidence = Evidence(status=9, out_of_memory=True, limit=300_000_000, resident=281_000_000)
    assert cause(evidence).text == said
    assert cause(Evidence(status=9, limit=300_000_000)).text == "killed (SIGKILL)"
    assert cause(Evidence(status=11, out_of_memory=True, limit=1)).text == "segmentation fault (SIGSEGV)"
    assert cause(Evidence(status=9, out_of_memory=True, resident=5_000_000)).text == (
        "out of memory: the machine had none left (it held 5 MB when last seen)"
    )


def test_a19_exit_of_mpiexec_is_the_cause_for_its_ranks() -> None:
    said = "mpiexec, which holds the ranks, was killed (SIGKILL)"
    assert launcher_exit(-9) == said
    assert launcher_exit(1) == "mpiexec, which holds the ranks, ended with exit status 1"
    assert launcher_exit(None) == "the cluster's supervisor has ended, and its ranks with it"
    assert cause(Evidence(status=9, launcher=said)).text == said


def test_every_signal_has_a_name() -> None:
    said = "child process [j@1,1] pid 5 terminated\nwaitpid_fired child process [j@1,1] terminated with signal "
    for number in sorted(map(int, signal.valid_signals())):
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        assert cause(Evidence(status=number)).text.endswith(f" ({name})"), number
        assert status_in_log(f"{said}{signal.strsignal(number)}\n", 5) == number


def test_death_is_reported_if_the_evidence_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = sleeper()
    records, told = Recorder(tmp_path), []
    records.watch(1, child.pid)
    child.communicate()
    monkeypatch.setattr(recorder, "status_in_log", lambda *_: 1 / 0)
    monkeypatch.setattr(recorder, "_GET_INFO", 0)
    records.examine(1, child.pid, 0, Loop().later, told.append)
    assert [each.text for each in told] == [UNKNOWN]


def test_without_evidence_nothing_is_guessed() -> None:
    assert cause(Evidence()).text == UNKNOWN
    assert cause(Evidence(out_of_memory=True, limit=1)).text == UNKNOWN
    assert not known(Evidence(note=CRASH))
    assert known(Evidence(status=0))


@pytest.mark.parametrize(("pid", "status"), [(30, 9), (31, 3 << 8), (303, 11), (3, None), (304, None)])
def test_mpiexecs_output_is_parsed_by_process(pid: int, status: int | None) -> None:
    assert status_in_log(LOG, pid) == status


def test_mpiexecs_output_is_hidden_from_users(tmp_path: Path) -> None:
    log = tmp_path / "cluster.log"
    log.write_text(LOG + "ImportError: real\n")
    assert log_tail(log) == "ImportError: real"


def test_dead_ranks_are_named_with_their_reason() -> None:
    death = rank_died(1, 77, "here", Cause("killed (SIGKILL)", ("its stack",)), at=2.5)
    assert death.evalue.startswith(
        "rank 1 (process 77 on here) died: killed (SIGKILL); the variables of the other ranks"
    )
    assert (death.traceback[1:], death.time, death.secondary) == (("its stack",), 2.5, False)
    assert str(dead_ranks({2, 1}, {1: "killed (SIGKILL)"})).startswith(
        f"ranks 1 (killed (SIGKILL)), 2 ({UNKNOWN}) are dead, so collectives cannot work."
    )


class Loop:
    """A timer that is wound by hand."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def later(self, _seconds: float, function: Callable[..., None], *args: object) -> None:
        self.waiting.append((function, args))

    def wind(self) -> None:
        waiting, self.waiting = self.waiting, []
        for function, args in waiting:
            function(*args)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", "killed (SIGKILL)"),
        ("import os; os._exit(3)", "it exited with status 3"),
    ],
)
def test_a_record_has_the_status_though_another_process_reaps(tmp_path: Path, code: str, said: str) -> None:
    """By the pidfd on a new Linux, else from mpiexec's log; it waits until the parent has reaped."""
    child = subprocess.Popen([sys.executable, "-c", f"input(); {code}"], stdin=subprocess.PIPE)
    records, loop, told = Recorder(tmp_path), Loop(), []
    records.watch(1, child.pid)
    pidfd = records._alive[child.pid]._pidfd
    records.begin_cell()
    records.examine(1, child.pid, 0, loop.later, told.append)
    assert told == [], "it still runs"
    child.communicate(b"\n")
    ended = f"terminated with signal {signal.strsignal(9)}" if child.returncode < 0 else ""
    (tmp_path / "cluster.log").write_text(
        f"child process [j@1,1] pid {child.pid} terminated\n"
        + (f"waitpid_fired child process [j@1,1] {ended}\n" if ended else "waitpid_fired child [j@1,1] exit code 3\n")
    )
    loop.wind()
    assert [each.text for each in told] == [said]
    assert pidfd.closed
    assert records.causes == {1: said}
    assert loop.waiting == []


def test_mpiexec_that_has_outlived_its_ranks_is_not_the_cause(tmp_path: Path) -> None:
    """Once replacements had taken the places of all its ranks, mpiexec's exit was given as the cause of later deaths."""
    child = sleeper()
    records, loop, told = Recorder(tmp_path), Loop(), []
    records.watch(1, child.pid)
    child.kill()
    child.communicate()
    records.launcher_exited(0)
    records.examine(1, child.pid, 0, loop.later, told.append)
    (tmp_path / "cluster.log").write_text(
        f"child process [j@1,1] pid {child.pid} terminated\n"
        f"waitpid_fired child process [j@1,1] terminated with signal {signal.strsignal(9)}\n"
    )
    while not told:
        loop.wind()
    assert [each.text for each in told] == ["killed (SIGKILL)"]


@pytest.mark.parametrize("reaped_after", [1, 30])
def test_supervisor_that_has_not_reaped_yet_is_awaited(tmp_path: Path, reaped_after: int) -> None:
    """It may have much to do, or no time to do it, while one of its ranks dies."""
    child = sleeper()
    records, loop, told = Recorder(tmp_path), Loop(), []
    records.watch(1, child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    records.examine(1, child.pid, 0, loop.later, told.append)
    for _ in range(reaped_after):
        assert told == []
        loop.wind()
    child.communicate()
    (tmp_path / "cluster.log").write_text(  # for a Linux that does not tell by the pidfd
        f"child process [j@1,1] pid {child.pid} terminated\n"
        f"waitpid_fired child process [j@1,1] terminated with signal {signal.strsignal(9)}\n"
    )
    loop.wind()
    assert [each.text for each in told] == ["killed (SIGKILL)"]


@pytest.mark.parametrize(("by_mpi", "patience"), [(True, 5.0), (False, 1.0)])
def test_mpiexec_is_awaited_longer_than_a_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_mpi: bool, patience: float
) -> None:
    monkeypatch.setattr(recorder, "_GET_INFO", 0)
    child = sleeper()
    records, loop, told = Recorder(tmp_path), Loop(), []
    records.watch(1, child.pid)
    child.communicate()
    records.examine(1, child.pid, 0, loop.later, told.append, by_mpi=by_mpi)
    pauses = 0
    while not told:
        loop.wind()
        pauses += 1
    assert pauses * recorder._PAUSE_S == pytest.approx(patience)
    assert told[0].text == UNKNOWN


def test_a_rank_of_another_host_died_for_an_unknown_reason(tmp_path: Path) -> None:
    records, told = Recorder(tmp_path), []
    records.examine(3, 1, 0, Loop().later, told.append)
    assert [each.text for each in told] == [UNKNOWN]


def test_memory_groups_of_both_generations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    (one / "box").mkdir(parents=True)
    two.mkdir()
    for folder in (one, one / "box"):
        (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    (two / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    monkeypatch.setattr(recorder, "_GROUPS", ((":memory:", str(one), "memory.oom_control", "memory.limit_in_bytes"),))
    monkeypatch.setattr(recorder, "_GROUP_2", ("0::", str(two), "memory.events", "memory.max"))
    assert memory_group("4:memory:/box\n0::/\n") == (one / "box", "memory.oom_control", "memory.limit_in_bytes")
    assert memory_group("4:memory:/docker/abc\n") == (one, "memory.oom_control", "memory.limit_in_bytes")
    assert memory_group("0::/user.slice/x\n") == (two, "memory.events", "memory.max")
    assert memory_group("1:cpu:/\n") is None


# Whose a process or a folder is.


def sleeper(**environment: str) -> subprocess.Popen[bytes]:
    """A process that waits for its input, and has begun."""
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], **environment},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def test_e3_mark_survives_reuse_of_its_process_number() -> None:
    own = mark(os.getpid())
    assert not is_gone(own)
    pid, start, namespace, boot = own.split(":")
    assert is_gone(f"{pid}:{int(start) - 1}:{namespace}:{boot}"), "the number is another process's now"
    assert not is_gone(f"{pid}:{int(start) - 1}:{namespace}:another-boot"), "another machine's: nothing is known"
    assert not is_gone(f"{pid}:{int(start) - 1}:1:{boot}"), "another container's: nothing is known"
    assert not is_gone("")
    child = sleeper()
    of_child = mark(child.pid)
    assert not is_gone(of_child)
    child.kill()
    child.wait()
    assert is_gone(of_child)


def test_a17_children_of_orphans_are_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_END_S", PATIENCE_S)
    monkeypatch.setattr(leftovers, "_MOMENT_S", 0.0)
    gone = sleeper()
    of_gone = mark(gone.pid)
    gone.kill()
    gone.wait()
    supervisor = sleeper(**{HOLDER: of_gone})
    rank = sleeper(**{HOLDER: mark(supervisor.pid)})
    anothers = sleeper(**{HOLDER: mark(os.getpid())})
    unmarked = sleeper(COMMENT="python -m hvd_kernel.worker")
    every = [supervisor, rank, anothers, unmarked]
    try:
        found = {each.pid: each for each in leftovers.orphans()}
        assert set(found) & {each.pid for each in every} == {supervisor.pid, rank.pid}
        assert leftovers.end(found[rank.pid])
        assert rank.wait(PATIENCE_S) == -9
        assert leftovers.end(found[rank.pid]), "gone already"
        assert [each.poll() for each in (supervisor, anothers, unmarked)] == [None] * 3
    finally:
        for each in every:
            each.kill()
            each.communicate()


def test_a17_exiting_processes_are_no_leftovers(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = sleeper()
    of_gone = mark(gone.pid)
    gone.kill()
    gone.wait()
    ending = sleeper(**{HOLDER: of_gone})
    marked, seen = leftovers._marked, []

    def ends_when_it_was_seen() -> Iterator[leftovers.Marked]:
        seen.extend(each for each in marked() if each.pid == ending.pid)
        yield from seen
        assert ending.stdin is not None
        ending.stdin.close()

    monkeypatch.setattr(leftovers, "_marked", ends_when_it_was_seen)
    monkeypatch.setattr(leftovers, "_MOMENT_S", PATIENCE_S)
    assert leftovers.orphans() == []
    assert len(seen) == 1
    assert ending.wait(PATIENCE_S) == 0
    assert ending.stdout is not None
    ending.stdout.close()


def test_e3_process_with_the_number_of_an_orphan_is_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_END_S", 0.0)
    other = sleeper()
    try:
        assert leftovers.end(leftovers.Marked(other.pid, "an older mark", "", "")), "the one that was meant is gone"
        assert other.poll() is None
    finally:
        other.communicate()


def test_e2_only_folders_of_ended_holders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = sleeper()
    names = {name: tmp_path / f"hvd-{name}" for name in ("dead", "alive", "unmarked", "link")}
    for name in ("dead", "alive", "unmarked"):
        names[name].mkdir()
    names["link"].symlink_to(names["dead"])
    claim(names["alive"])
    assert holder_of(names["alive"]) == mark(os.getpid())
    assert (names["alive"] / "holder").stat().st_mode & 0o777 == 0o600
    (names["dead"] / "holder").write_text(mark(gone.pid))
    monkeypatch.setattr(leftovers.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(leftovers, "SHARED", tmp_path / "none")
    assert leftovers.folders() == []
    gone.kill()
    gone.communicate()
    assert leftovers.folders() == [names["dead"]]
    leftovers.sweep()  # what the next start of a cluster does
    assert leftovers.folders() == []
    assert names["alive"].exists()
    assert names["unmarked"].exists()
