"""The interrupt key, the state of ranks, and why they wait: in a real kernel, on four ranks, by the button's message."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdtest.cluster import living, until
from hvdtest.kernel import Kernel, Outcome, await_tagged
from hvdtest.panel_rows import ranks_with_line, waits

from hvd_kernel.magics.messages import all_replaced, start_interrupted

PATIENCE_S = 60.0
"""Generous: on an idle machine each of these takes well under a second."""

pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.timeout(400),
    # A rank that is stopped is waited for until the test has seen what is said of it.
    pytest.mark.cluster(
        4,
        env={"HVD_STOP_ABORT": "0"},
        figures={
            "cell_output_SHOW_AFTER_S": 0.0
        },  # a dashboard shows which ranks are inside the cell: it opens at once
        setup=(
            "%%hvdrun\nimport asyncio, time, torch\nkept = [rank, 'kept']",
            # On a busy machine an interrupt may come to one rank much later than to another.
            "%%hvdrun\nimport hvd_kernel.worker.shell.control\nhvd_kernel.worker.shell.control._COHERENT_S = 60.0",
        ),
    ),
]

DEADLOCK = """
import ctypes
def deadlock(library):
    lock = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)  # forever, whatever signals come
"""


def assert_sound(kernel: Kernel) -> None:
    """Check that the next cell is exact on every rank, and every variable exists (B4)."""
    total = "int(hvd.allreduce(torch.tensor([kept[0] + 1]), name='sound', op=hvd.Sum)), kept[1]"
    assert kernel.run(f"%%hvdrun\n{total}").shown == ["[0-3] (10, 'kept')"]


def pids(kernel: Kernel) -> list[int]:
    return [int(row.split()[2]) for row in kernel.run("%hvd status").text().splitlines()[1:5]]


def wait_until_inside(kernel: Kernel, started: tuple[str, float], ranks: int = 4) -> None:
    """Wait until a dashboard shows the output of every rank."""
    gather(kernel, started[0], lambda seen: len(ranks_with_line(seen, "in")) == ranks)


def interrupted(kernel: Kernel, code: str, presses: int = 1) -> Outcome:
    """Run a cell as a user does, press the button when every rank has printed a line, and return the outcome."""
    started = kernel.start(f"%%hvdrun\n{code}", prompts=True)
    wait_until_inside(kernel, started)
    for _ in range(presses):
        kernel.press()
    outcome = kernel.finish_rest(started, allow_error=True, timeout=PATIENCE_S)
    assert outcome.reply["ename"] == "KeyboardInterrupt", outcome.error
    return outcome


@pytest.mark.nightly
def test_the_button_sends_a_message(kernel: Kernel) -> None:
    assert kernel.manager.kernel_spec.interrupt_mode == "message"


CALLS = {
    "sleep": "time.sleep(600)",
    "compute": "while True: torch.ones(1000).sum()",
    "await": "await asyncio.sleep(600)",
    "C code without Python's lock": "ctypes.CDLL(None).sleep(600)",
    "C code with Python's lock": "while True: ctypes.PyDLL(None).usleep(300_000)",
    "collective": "hvd.barrier() if rank else time.sleep(600)",
}
SLOW = {"C code with Python's lock"}  # A12 has it too


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.nightly) if what in SLOW else what for what in CALLS]
)
def test_b1_interrupt_while_ranks(kernel: Kernel, what: str) -> None:
    outcome = interrupted(kernel, f"import ctypes\nprint('in')\n{CALLS[what]}")
    assert outcome.error.splitlines()[0] == "KeyboardInterrupt: ranks 0-3 interrupted, variables are kept"
    assert_sound(kernel)


MIXED = """import ctypes, time
calls = [
    lambda: time.sleep(600),
    lambda: ctypes.CDLL(None).sleep(600),
    lambda: hvd.allreduce(torch.ones(4), name='mixed'),
    lambda: [torch.ones(1000).sum() for _ in iter(int, 1)],
]
try:
    print('in')
    calls[(rank + {turn}) % 4]()
except BaseException as error:
    raised = type(error).__name__
    raise
"""


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.nightly) for turn in (1, 2, 3))])
def test_b3_ranks_in_four_different_calls_all_raise_the_same(kernel: Kernel, turn: int) -> None:
    interrupted(kernel, MIXED.replace("{turn}", str(turn)))
    assert kernel.run("%%hvdrun\nraised").shown == ["[0-3] 'KeyboardInterrupt'"]
    assert_sound(kernel)


LATE = """%%hvdrun
import threading, time
from hvd_kernel.worker.shell import repeated_signal
class Unheard(threading.Event):
    def wait(self, timeout):
        time.sleep(timeout)  # so that signals follow although the main thread has noticed
class Threading:
    Event = Unheard
    main_thread = threading.main_thread
repeated_signal.threading = Threading
"""
HANDLED = """try:
    print('in')
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(0.3)
    handled = 'to its end'
    raise
"""


def test_b1_interrupt_does_not_break_the_cells_except_block(kernel: Kernel) -> None:
    """On a busy machine a rank got the signal again while it handled the first one, and raised in its ``except``."""
    kernel.run(LATE)
    interrupted(kernel, HANDLED)
    kernel.run("%%hvdrun\nrepeated_signal.threading = threading")
    assert kernel.run("%%hvdrun\nhandled").shown == ["[0-3] 'to its end'"]
    assert_sound(kernel)


@pytest.mark.nightly
@pytest.mark.parametrize("times", [3, 20])
def test_b1_interrupts_in_a_loop_of_large_sums_are_coherent(kernel: Kernel, times: int) -> None:
    """At random moments: every rank sees KeyboardInterrupt, and the next sum is exact."""
    loop = """%%hvdrun
big, raised = torch.ones(1 << 24), ''
try:
    print('in', flush=True)
    while True: hvd.allreduce(big, name='big', op=hvd.Sum)
except BaseException as error:
    raised = type(error).__name__
    raise
"""
    chance = random.Random(5)
    for _ in range(times):
        started = kernel.start(loop, prompts=True)
        wait_until_inside(kernel, started)
        time.sleep(chance.random() / 2)  # the moment is what varies
        kernel.press()
        outcome = kernel.finish_rest(started, allow_error=True, timeout=PATIENCE_S)
        assert outcome.error.splitlines()[0] == "KeyboardInterrupt: ranks 0-3 interrupted, variables are kept"
        assert kernel.run("%%hvdrun\nraised").shown == ["[0-3] 'KeyboardInterrupt'"]
        assert_sound(kernel)


def test_b2_quick_interrupts_and_those_between_cells_are_safe(kernel: Kernel) -> None:
    with kernel.figures(interrupts_SAME_S=600.0):  # on a busy machine it may not be that quick
        outcome = interrupted(kernel, "print('in')\ntime.sleep(600)", presses=5)
    assert outcome.error.splitlines()[0] == "KeyboardInterrupt: ranks 0-3 interrupted, variables are kept"
    for _ in range(5):
        kernel.press()
        assert_sound(kernel)


@pytest.mark.parametrize("times", [8, pytest.param(30, marks=pytest.mark.nightly)])
def test_b2_interrupts_at_any_moment_of_short_cells_never_wedge(kernel: Kernel, times: int) -> None:
    chance = random.Random(7)
    for _ in range(times):
        started = kernel.start("%%hvdrun\nhvd.barrier()\nkept[0]")
        time.sleep(chance.random() / 20)  # the moment is what varies
        kernel.press()
        kernel.finish(started, allow_error=True, timeout=PATIENCE_S)
    kernel.run("%%hvdrun\n1", allow_error=True)  # the last interrupt may have come between cells
    assert_sound(kernel)


BEGUN = """
import os, signal
from hvd_kernel.cluster import Session
whole = Session.run
def pressed(self, *args, **kwargs):
    run = whole(self, *args, **kwargs)
    os.kill(os.getpid(), signal.SIGINT)
    return run
Session.run = pressed
"""


def test_b2_interrupt_at_the_start_of_a_cell_waits_for_ranks(kernel: Kernel) -> None:
    """The cell ended before its ranks, and the next one was refused: they still ran the previous cell."""
    kernel.run(BEGUN)
    ended = kernel.run("%%hvdrun\ntime.sleep(600)", allow_error=True, timeout=PATIENCE_S)
    kernel.run("Session.run = whole")
    assert ended.error == "KeyboardInterrupt: ranks 0-3 interrupted, variables are kept"
    assert_sound(kernel)


def test_b2_interrupt_during_an_error_does_not_hide_it(kernel: Kernel) -> None:
    """IPython wrote the error to stderr then, and the cell's reply named one that no message showed."""
    kernel.run(
        "import os, signal\nclass Slow(Exception):\n    def _render_traceback_(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n        return ['Slow: to show']"
    )
    assert kernel.run("raise Slow('to show')", allow_error=True).error == "Slow: to show"
    assert_sound(kernel)


def test_c5_the_hang_is_explained_with_tensor_rank_and_line(kernel: Kernel) -> None:
    code = """def load():
    time.sleep(600)
hvd.allreduce(torch.ones(4), name='grad/conv1') if rank != 3 else load()"""
    expected = r"allreduce 'grad/conv1' waits for rank 3, which is in cell \d+:2 load\(\): time\.sleep\(600\)"
    explained(kernel, code, expected)


def gather(kernel: Kernel, identity: str, enough: Any) -> list[dict[str, Any]]:
    """Take a running cell's messages until there are enough."""
    deadline = time.monotonic() + PATIENCE_S
    messages: list[dict[str, Any]] = []
    while not enough(messages):
        try:
            message = kernel._next(kernel.client.get_iopub_msg, deadline, messages)
        except AssertionError as silence:
            kernel.press()  # the other tests need the ranks
            raise AssertionError(f"the dashboard said {waits(messages)}") from silence
        if message["parent_header"].get("msg_id") == identity:
            messages.append(message)
    return messages


def explained(kernel: Kernel, code: str, sentence: str, release: Callable[[], object] = lambda: None) -> Outcome:
    """Run a hanging cell until its dashboard shows the sentence (a pattern), interrupt it, and return the outcome.

    ``release`` ends what no interrupt can end.
    """
    started = kernel.start(f"%%hvdrun\n{code}", prompts=True)
    gather(kernel, started[0], lambda seen: any(re.fullmatch(sentence, text) for text in waits(seen)))
    kernel.press()
    release()
    outcome = kernel.finish_rest(started, allow_error=True, timeout=3 * PATIENCE_S)
    assert outcome.error.splitlines()[0] == "KeyboardInterrupt: ranks 0-3 interrupted, variables are kept"
    assert re.fullmatch(f"at that moment: {sentence}", outcome.error.splitlines()[-1])
    assert_sound(kernel)
    return outcome


@pytest.mark.parametrize("leaver", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_c5_a_rank_that_has_ended_the_cell_is_named(kernel: Kernel, leaver: int) -> None:
    """Rank 0 knows which rank the others wait for, even if it has itself ended the cell."""
    said = f"barrier waits for rank {leaver}, which has ended the cell"
    explained(kernel, f"if rank != {leaver}: hvd.barrier()", said)


def test_c5_ranks_on_which_the_cell_does_not_run_are_named(kernel: Kernel) -> None:
    started = kernel.start("%%hvdrun --ranks 0-1\nhvd.barrier()", prompts=True)
    said = "barrier waits for ranks 2-3, which the cell does not run on"
    gather(kernel, started[0], lambda seen: said in waits(seen))
    kernel.press()
    outcome = kernel.finish_rest(started, allow_error=True, timeout=PATIENCE_S)
    assert outcome.error == f"KeyboardInterrupt: ranks 0-1 interrupted, variables are kept\nat that moment: {said}"
    assert_sound(kernel)


def test_c4_two_deadlocked_collectives_are_both_named(kernel: Kernel) -> None:
    code = "hvd.allreduce(torch.ones(4), name='a') if rank else hvd.broadcast(torch.ones(4), 0, name='b')"
    expected = r"allreduce 'a' waits for rank 0, which waits in broadcast 'b' at cell \d+:1: .*"
    other = r"broadcast 'b' waits for ranks 1-3, which wait in allreduce 'a' at cell \d+:1: .*"
    explained(kernel, code, f"({expected}|{other})")


def test_a12_rank_holding_the_gil_in_c_is_named_with_its_line(kernel: Kernel, tmp_path: Path) -> None:
    """Its control thread cannot answer: the stack is written by its signal handler, to a FIFO without a writer so far."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = f"""import ctypes
def native():
    ctypes.PyDLL(None).open({os.fsencode(fifo)!r}, 0)
if rank == 2: native()
hvd.allreduce(torch.ones(4), name='late')"""
    sentence = r"allreduce 'late' waits for rank 2, which is in C code, called in cell \d+:3 native\(\)"
    explained(kernel, code, sentence, release=lambda: os.close(os.open(fifo, os.O_WRONLY)))


def test_a10_a_stopped_rank_is_named(kernel: Kernel) -> None:
    victim = pids(kernel)[2]
    started = kernel.start("%%hvdrun\nprint('in')\nwhile True:\n    hvd.barrier(); time.sleep(0.05)", prompts=True)
    wait_until_inside(kernel, started)
    os.kill(victim, signal.SIGSTOP)
    stopped = (
        "rank 2 is stopped (SIGSTOP or a debugger)",
        "barrier waits for rank 2, which is stopped (SIGSTOP or a debugger)",
    )
    try:
        gather(kernel, started[0], lambda seen: set(stopped) & set(waits(seen)))
    finally:
        os.kill(victim, signal.SIGCONT)
    kernel.press()
    kernel.finish_rest(started, allow_error=True, timeout=PATIENCE_S)
    kernel.run("%%hvdrun\n1", allow_error=True)
    assert_sound(kernel)


@pytest.mark.nightly
def test_a13_slow_ranks_are_not_reported_as_waiting(kernel: Kernel) -> None:
    """Ranks reach their sums up to 0.3 s late, in turn: no rank is stuck, though the whole cell is slow."""
    code = """longest = 0.0
for i in range(12):
    time.sleep(0.3 * (i % 4 == rank)); began = time.monotonic()
    hvd.allreduce(torch.ones(4), name='turn'); longest = max(longest, time.monotonic() - began)"""
    with kernel.figures(stall_WAIT_S=3.0):
        started = kernel.start(f"%%hvdrun\n{code}", prompts=True)
        outcome = kernel.finish(started, timeout=PATIENCE_S)
    kernel.run("%%hvdrun -o longest\nlongest")
    stuck = kernel.run("max(longest.values()) >= 3.0").shown == ["True"]  # on a busy machine: then it is said, rightly
    assert stuck or set(waits(outcome.messages)) <= {""}


def test_a9_error_of_a_rank_precedes_the_wait_of_others(kernel: Kernel) -> None:
    code = "%%hvdrun\nif rank == 2:\n    time.sleep(1.5)\n    raise ValueError('late')\nhvd.barrier()"
    outcome = kernel.run(code, allow_error=True)
    assert (outcome.reply["ename"], outcome.reply["evalue"]) == ("ValueError", "late")
    assert "waits for" not in outcome.error
    assert_sound(kernel)


def test_headless_output_of_a_long_wait_is_the_printed_text(kernel: Kernel) -> None:
    outcome = kernel.run("%%hvdrun\nif rank == 1: time.sleep(2.5)\nhvd.barrier()\nprint('through')")
    assert outcome.stored == [{"type": "stream", "name": "stdout", "text": "[0-3] through\n"}]


def until_said(kernel: Kernel, cell: str, expected: str) -> None:
    """Run a cell until it prints the expected text: on a busy machine a rank may be late."""
    deadline = time.monotonic() + PATIENCE_S
    while not re.fullmatch(expected, text := kernel.run(cell).text()):
        assert time.monotonic() < deadline, text


def test_stacks_between_cells(kernel: Kernel) -> None:
    until_said(kernel, "%hvd stacks", r"\[0-3\] no cell runs\n")
    until_said(kernel, "%hvd stacks --ranks 2", r"\[2\] no cell runs\n")
    refused = kernel.run("%hvd stacks --ranks 4", allow_error=True)
    assert refused.error == "UsageError: --ranks 4: there is no rank 4; the cluster has ranks 0-3"


def test_stacks_while_ranks_work_in_the_background(kernel: Kernel) -> None:
    kernel.run("%%hvdrun --bg nap\ndef doze():\n    time.sleep(600)\ndoze() if rank else hvd.barrier()")
    waits_at = r"\[0\] waiting in barrier\n    cell \d+:3: doze\(\) if rank else hvd\.barrier\(\)\n"
    sleeps_at = r"\[1-3\] in the cell's own code\n    cell \d+:3: .*\n    cell \d+:2 doze\(\): time\.sleep\(600\)\n"
    until_said(kernel, "%hvd stacks", waits_at + sleeps_at)
    until_said(kernel, "%hvd stacks --ranks 0", waits_at)
    kernel.run("%hvdcancel nap")
    kernel.run("%hvdjobs --wait nap", allow_error=True)
    assert_sound(kernel)


def is_true(kernel: Kernel, condition: str, shell: str) -> bool:
    """Ask a subshell, while the kernel is at a cell, for a condition of the manager of the ranks."""
    code = f"manager = __import__('hvd_kernel.magics').magics.manager_of(get_ipython())\nassert {condition}"
    return bool(kernel.reply_of(shell, code)["status"] == "ok")


def test_b3_second_press_shows_stacks_third_replaces_stuck_rank(kernel: Kernel) -> None:
    kernel.run("%%hvdrun\nmine = 100 + rank")
    code = f"{DEADLOCK}print('in'); deadlock(ctypes.PyDLL(None)) if rank == 2 else hvd.barrier()"
    shell = kernel.subshell()
    with kernel.figures(cell_view_PATIENT_S=3600.0, interrupts_SAME_S=0.0, inquiry__WRITTEN_S=30.0):
        started = kernel.start(f"%%hvdrun\n{code}", prompts=True)
        stuck = r"barrier waits for rank 2, which is in C code, called in (cell \d+):5 deadlock\(\)"
        seen = gather(kernel, started[0], lambda seen: any(re.fullmatch(stuck, text) for text in waits(seen)))
        cell = next(filter(None, (re.fullmatch(stuck, text) for text in waits(seen))))[1]
        kernel.press()
        until(lambda: is_true(kernel, "manager.prompts._running == {2}", shell), "the others have obeyed")
        kernel.press()
        shown = kernel.wait_for("stream")
        kernel.press()
        outcome = kernel.finish_rest(started, allow_error=True, timeout=PATIENCE_S)
    assert shown["name"] == "stderr"
    assert re.fullmatch(
        rf"\[2\] in C code that keeps Python's lock\n    {cell}:6\n    {cell}:5 deadlock\(\)\n(    C: \S+\n)+"
        r"rank 2 interrupted again and not responding yet: another interrupt ends only this one .*\n",
        shown["text"],
    ), shown["text"]
    lines = outcome.error.splitlines()
    assert lines[0] == "KeyboardInterrupt: ranks 0-1,3 interrupted, variables are kept"
    assert cell == f"cell {outcome.reply['execution_count']}"
    assert lines[1] == f"not responding: rank 2 is in C code, called in {cell}:5 deadlock()"
    assert kernel.run("%hvdpull mine --ranks 0-1,3\ndict(mine)").shown == ["{0: 100, 1: 101, 3: 103}"]
    kernel.run("%%hvdrun\nimport torch, time\nkept = [rank, 'kept']")
    assert_sound(kernel)


DISOBEYS = """print('in', flush=True)
while True:
    try:
        time.sleep(600)
    except BaseException:
        print('again', flush=True)
"""


@pytest.mark.nightly
@pytest.mark.cluster(2)
@pytest.mark.parametrize("turn", range(10))
def test_b3_third_press_replaces_all_unresponsive_ranks(kernel: Kernel, turn: int) -> None:
    """Living ranks were reported as ended, and every later cell asked to interrupt the previous one first."""
    kernel.run("%%hvdrun\nimport time\nmine = rank")
    before = {row.split()[2] for row in kernel.run("%hvd status").text().splitlines()[1:3]}
    with kernel.figures(cell_view_PATIENT_S=3600.0, interrupts_SAME_S=0.0):
        started = kernel.start(f"%%hvdrun\n{DISOBEYS}", prompts=True)
        wait_until_inside(kernel, started, 2)
        kernel.press()  # one by one: signals that the kernel has not come to yet are one signal
        gather(kernel, started[0], lambda seen: len(ranks_with_line(seen, "again")) == 2)  # both ranks have disobeyed
        kernel.press()
        assert "not responding yet" in kernel.wait_for("stream")["text"]
        kernel.press()
        outcome = kernel.finish_rest(started, allow_error=True, timeout=PATIENCE_S)
    assert outcome.reply["ename"] == "KeyboardInterrupt"
    assert all_replaced((0, 1)) in outcome.error
    assert kernel.run("%%hvdrun\nimport torch\nint(hvd.allreduce(torch.tensor([rank + 1]), op=hvd.Sum))").shown == [
        "[0-1] 3"
    ]
    after = {row.split()[2] for row in kernel.run("%hvd status").text().splitlines()[1:3]}
    assert not before & after
    assert kernel.run("%%hvdrun\n'mine' in globals()").shown == ["[0-1] False"]


@pytest.mark.cluster(0)
@pytest.mark.parametrize("presses", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_b2_interrupt_while_ranks_start(kernel: Kernel, presses: int) -> None:
    started = kernel.start("%hvd start -np 2", prompts=True)
    kernel.wait_for("display_data")  # "starting 2 ranks"
    for _ in range(presses):
        kernel.press()
    outcome = kernel.finish_rest(started, allow_error=True, timeout=PATIENCE_S)
    assert outcome.error == f"KeyboardInterrupt: {start_interrupted(2)}"
    assert kernel.run("%%hvdrun -np 2\nrank", timeout=120).shown == ["[0] 0\n[1] 1"]


@pytest.mark.parametrize("how", ["restart", pytest.param("shutdown", marks=pytest.mark.nightly)])
def test_b5_restart_and_shutdown_during_a_cell_leave_nothing(tmp_path: Path, how: str) -> None:
    with Kernel(tmp_path) as kernel:
        kernel.run("%%hvdrun -np 2\nimport torch", timeout=120)
        ranks = [int(row.split()[2]) for row in kernel.run("%hvd status").text().splitlines()[1:3]]
        code = "print('in')\nwhile True: hvd.allreduce(torch.ones(1 << 20), name='x')"
        wait_until_inside(kernel, kernel.start(f"%%hvdrun\n{code}", prompts=True), 2)
        if how == "restart":
            kernel.restart()
            assert kernel.run("1 + 1").shown == ["2"]
            await_tagged(kernel.tag, 1)
    assert not living(set(ranks))  # and the end of the block has looked for everything of the kernel's
