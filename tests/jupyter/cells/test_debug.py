"""Questions of ranks, answered through the stdin channel as a front end does: input, getpass, breakpoint, post-mortem."""

from __future__ import annotations

import os
import queue
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pexpect
import pytest
from hvdtest.kernel import Kernel, Outcome

from hvd_kernel.magics.rank_names import NO_FRAME

pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.timeout(400),
    # A cell that takes a second, as any may on a busy machine, would show a dashboard.
    pytest.mark.cluster(3, figures={"cell_output_SHOW_AFTER_S": 3600.0}),
]

PATIENCE_S = 100.0


def question(kernel: Kernel) -> dict[str, object]:
    """The next input_request: its prompt, and whether it is for a password."""
    message = kernel.client.get_stdin_msg(timeout=PATIENCE_S)
    assert message["msg_type"] == "input_request"
    return message["content"]


def talk(kernel: Kernel, cell: str, turns: Sequence[tuple[str, str]], *, error: bool = False) -> Outcome:
    """Run a cell as a user who gets these prompts, answers them like this, and gets no other."""
    started = kernel.start(cell, prompts=True)
    for prompt, line in turns:
        assert question(kernel) == {"prompt": prompt, "password": False}
        kernel.client.input(line)
    outcome = kernel.finish(started, timeout=PATIENCE_S, allow_error=error)
    assert_asked_no_more(kernel)
    return outcome


@pytest.fixture
def unhurried(kernel: Kernel) -> Iterator[None]:
    """Let the kernel wait for a rank's next prompt, in its turn, for longer than a busy machine may need."""
    with kernel.figures(cell_prompts_SETTLE_S=10.0, cell_prompts_CAST_S=30.0, inspection_ANSWER_S=60.0):
        yield


def assert_asked_no_more(kernel: Kernel) -> None:
    with pytest.raises(queue.Empty):
        kernel.client.get_stdin_msg(timeout=0.05)


def assert_works(kernel: Kernel) -> None:
    """Check that all ranks run a collective and nothing of an earlier cell interferes."""
    cell = "%%hvdrun\nimport torch\nhvd.allreduce(torch.ones(1), name='after', op=hvd.Sum).item()"
    assert kernel.run(cell, timeout=PATIENCE_S).shown == ["[0-2] 3.0"]


def test_input_on_one_rank_returns_the_typed_text_there_only(kernel: Kernel) -> None:
    cell = "%%hvdrun\nx = input('name? ') if rank == 2 else 'nobody'\nx"
    assert talk(kernel, cell, [("[2] name? ", "Ada L.")]).shown == ["[0-1] 'nobody'\n[2] 'Ada L.'"]


def test_output_before_a_prompt_is_shown_above_it_once(kernel: Kernel) -> None:
    cell = "%%hvdrun\nprint('hello', rank)\nif rank == 1: print('open: ', end=''); y = input()\nprint('bye')"
    started = kernel.start(cell, prompts=True)
    assert question(kernel)["prompt"] == "[1] "
    assert kernel.wait_for("stream")["text"] == "[1] hello 1\n[1] open:\n"
    kernel.client.input("5")
    outcome = kernel.finish_rest(started)
    assert outcome.text() == "[0] hello 0\n[2] hello 2\n[0-2] bye\n"
    assert kernel.run("%%hvdrun --ranks 1\ny").shown == ["[1] '5'"]


@pytest.mark.usefixtures("unhurried")
def test_prompts_of_several_ranks_appear_in_rank_order(kernel: Kernel) -> None:
    cell = "%%hvdrun\nhvd.barrier()\na, b = input('a '), input('b ')\na + b"
    turns = [(f"[{rank}] {name} ", f"{name}{rank}") for rank in range(3) for name in "ab"]
    assert talk(kernel, cell, turns).shown == ["\n".join(f"[{rank}] 'a{rank}b{rank}'" for rank in range(3))]


@pytest.mark.usefixtures("unhurried")
def test_a_line_for_all_or_some_ranks(kernel: Kernel) -> None:
    cell = "%%hvdrun\nhvd.barrier()\nline = input('? ')\nline"
    assert talk(kernel, cell, [("[0] ? ", "@all go on")]).shown == ["[0-2] 'go on'"]
    assert talk(kernel, cell, [("[0] ? ", "@0,2 yes"), ("[1] ? ", "@@all")]).shown == ["[0,2] 'yes'\n[1] '@@all'"]
    assert talk(kernel, cell, [("[0] ? ", "@@all x"), ("[1] ? ", "@1: y")]).shown == ["[0] '@all x'\n[1-2] 'y'"]


def test_password_prompt_is_hidden_and_in_no_output(kernel: Kernel) -> None:
    cell = "%%hvdrun\nimport getpass\nsecret = getpass.getpass('key: ') if rank == 1 else ''\nlen(secret)"
    started = kernel.start(cell, prompts=True)
    assert question(kernel) == {"prompt": "[1] key: ", "password": True}
    kernel.client.input("@all hunter2")
    outcome = kernel.finish(started)
    assert outcome.shown == ["[0,2] 0\n[1] 12"]
    assert "hunter2" not in str(outcome.messages) + str(outcome.reply)


def test_ctrl_d_is_the_end_of_input(kernel: Kernel) -> None:
    outcome = talk(kernel, "%%hvdrun\nif rank == 0: input('? ')", [("[0] ? ", "\x04")], error=True)
    assert outcome.reply["ename"] == "EOFError"
    assert_works(kernel)


def test_prompt_without_a_user_is_an_error_next_cell_works(kernel: Kernel) -> None:
    cell = "%%hvdrun\nif rank == 1: input('? ')\nhvd.barrier()"
    outcome = kernel.run(cell, allow_error=True)
    assert outcome.reply["ename"] == "StdinNotImplementedError"
    assert "need a user, and this notebook runs without one" in outcome.reply["evalue"]
    assert "StdinNotImplementedError on rank 1" in outcome.error
    assert "[0,2] released, because rank 1 failed" in outcome.error
    outcome = kernel.run("%%hvdrun\nif rank == 2: breakpoint()\nhvd.barrier()", allow_error=True)
    assert "PYTHONBREAKPOINT=0" in outcome.reply["evalue"]
    assert_works(kernel)


DEBUGGED = """%%hvdrun
def double(v):
    w = 2 * v
    return w
x = rank + 10
if rank == 1:
    breakpoint()
y = double(x)
hvd.barrier()
y
"""


def said(kernel: Kernel) -> str:
    return kernel.wait_for("stream")["text"]


def test_breakpoint_prints_steps_and_continues(kernel: Kernel) -> None:
    started = kernel.start(DEBUGGED, prompts=True)
    seen = []
    for line in ("p x", "n", "s", "n", "n", "p w", "c"):
        assert question(kernel) == {"prompt": "[1] (Pdb) ", "password": False}
        seen.append(said(kernel))
        kernel.client.input(line)
    outcome = kernel.finish_rest(started)
    at = [re.findall(r"\(\d+\)\S*|-> .*|^\[1\] \d+$", text, re.MULTILINE) for text in seen]
    assert at[0] == ["(6)<module>()", "-> breakpoint()"]
    assert at[1] == ["[1] 11"]
    assert at[2] == ["(7)<module>()", "-> y = double(x)"]
    assert at[3] == ["(1)double()", "-> def double(v):"]
    assert at[4] == ["(2)double()", "-> w = 2 * v"]
    assert at[5] == ["(3)double()", "-> return w"]
    assert at[6] == ["[1] 22"]
    assert outcome.shown == ["[0] 20\n[1] 22\n[2] 24"]


def test_a_breakpoint_set_by_line_stops_there(kernel: Kernel) -> None:
    started = kernel.start(DEBUGGED, prompts=True)
    for line in ("b 3", "c"):
        question(kernel)
        kernel.client.input(line)
        said(kernel)
    question(kernel)
    assert "(3)double()\n[1] -> return w\n" in said(kernel)
    for line in ("!w = -1", "cl 1", "c"):
        kernel.client.input(line)
        if line != "c":
            question(kernel)
    assert kernel.finish_rest(started).shown == ["[0] 20\n[1] -1\n[2] 24"]


def test_stepping_through_awaits_and_past_the_end_of_the_cell(kernel: Kernel) -> None:
    cell = """%%hvdrun
import asyncio
async def later(v):
    await asyncio.sleep(0.01)
    return v + 1
if rank == 0: breakpoint()
a = await later(1)
b = a
"""
    prompt = "[0] (Pdb) "
    talk(kernel, cell, [(prompt, line) for line in ("n", "n", "!a = 5", "n")])
    assert kernel.run("%%hvdrun\nimport sys\n(a, b, sys.gettrace())").shown == ["[0] (5, 5, None)\n[1-2] (2, 2, None)"]


def test_breakpoints_can_be_switched_off(kernel: Kernel) -> None:
    cell = "%%hvdrun\nimport os\nos.environ['PYTHONBREAKPOINT'] = '0'\nbreakpoint()\ndel os.environ['PYTHONBREAKPOINT']"
    talk(kernel, cell, [])


@pytest.mark.usefixtures("unhurried")
@pytest.mark.nightly
def test_two_ranks_at_a_breakpoint_are_prompted_in_rank_order(kernel: Kernel) -> None:
    cell = "%%hvdrun\nv = rank * 7\nhvd.barrier()\nif rank != 1: breakpoint()\nhvd.barrier()\nv"
    lines = ["v = 100", "c"]
    turns = [(f"[{rank}] (Pdb) ", line) for rank in (0, 2) for line in lines]
    assert talk(kernel, cell, turns).shown == ["[0,2] 100\n[1] 7"]
    assert talk(kernel, cell, [("[0] (Pdb) ", "@all v = 5"), ("[0] (Pdb) ", "@all c")]).shown == ["[0,2] 5\n[1] 7"]


def test_set_trace_of_pdb_and_of_ipython_are_the_same(kernel: Kernel) -> None:
    for module in ("pdb", "IPython.core.debugger"):
        cell = f"%%hvdrun\nz = 1\nif rank == 0:\n    from {module} import set_trace; set_trace()\nz"
        assert talk(kernel, cell, [("[0] (Pdb) ", "z = 9"), ("[0] (Pdb) ", "c")]).shown == ["[0] 9\n[1-2] 1"]


def test_quitting_ends_the_cell_on_all_ranks(kernel: Kernel) -> None:
    cell = "%%hvdrun\nif rank == 1: breakpoint()\nhvd.barrier()"
    outcome = talk(kernel, cell, [("[1] (Pdb) ", "q")], error=True)
    assert (outcome.reply["ename"], outcome.reply["evalue"]) == ("BdbQuit", "left the debugger with q")
    assert outcome.error.startswith("BdbQuit on rank 1")
    assert "[0,2] released, because rank 1 failed" in outcome.error
    assert_works(kernel)
    outcome = talk(kernel, cell, [("[1] (Pdb) ", "n"), ("[1] (Pdb) ", "q")], error=True)
    assert outcome.reply["ename"] == "BdbQuit"
    assert_works(kernel)


def test_quit_in_a_destructor_ends_the_cell_too(kernel: Kernel) -> None:
    lines = ["class Odd:", "    def __del__(self):", "        breakpoint()", "odd = Odd() if rank == 1 else None"]
    cell = "\n".join(["%%hvdrun", *lines, "del odd", "hvd.barrier()"])
    outcome = talk(kernel, cell, [("[1] (Pdb) ", "q")], error=True)
    assert (outcome.reply["ename"], outcome.reply["evalue"]) == ("BdbQuit", "left the debugger with q")
    assert outcome.error.startswith("BdbQuit on rank 1")
    assert_works(kernel)


@pytest.mark.parametrize("ask", ["input('? ')", "breakpoint()"])
def test_b_interrupt_at_a_prompt_reaches_all_ranks(kernel: Kernel, ask: str) -> None:
    started = kernel.start(f"%%hvdrun\nkept = rank\nhvd.barrier()\nif rank == 2: {ask}\nhvd.barrier()", prompts=True)
    question(kernel)
    kernel.manager.interrupt_kernel()
    outcome = kernel.finish(started, allow_error=True)
    assert outcome.reply["ename"] == "KeyboardInterrupt"
    assert "ranks 0-2 interrupted, variables are kept" in outcome.reply["evalue"]
    assert_asked_no_more(kernel)
    assert kernel.run("%%hvdrun\nkept").shown == ["[0] 0\n[1] 1\n[2] 2"]
    assert_works(kernel)


CLOCK = """import os, sys, time, types
clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * os.path.exists({later!r}))
timed = [sys.modules["hvd_kernel.magics." + name] for name in ("cell_view", "cell_prompts")]
for module in timed: module.time = clock"""


def test_a_timeout_does_not_count_the_time_at_a_prompt(kernel: Kernel, tmp_path: Path) -> None:
    later = tmp_path / "an hour later"
    kernel.run(CLOCK.format(later=str(later)))
    cell = f"%%hvdrun --timeout {PATIENCE_S}\nr = input('? ') if rank == 0 else ''\nhvd.barrier()\nr"
    started = kernel.start(cell, prompts=True)
    question(kernel)
    later.touch()
    kernel.client.input("in time")
    outcome = kernel.finish(started)
    kernel.run("for module in timed: module.time = time")
    assert outcome.shown[-1] == "[0] 'in time'\n[1-2] ''"
    assert_asked_no_more(kernel)


FAILS = "%%hvdrun\ndef inner(depth):\n    local = depth * 3\n    raise ValueError(local)\nif rank > 0: inner(rank)"


def test_post_mortem_shows_the_failing_frame(kernel: Kernel) -> None:
    assert kernel.run(FAILS, allow_error=True).reply["ename"] == "ValueError"
    started = kernel.start("%hvddebug --rank 2", prompts=True)
    assert question(kernel)["prompt"] == "[2] (Pdb) "
    text = said(kernel)
    assert "[2] ValueError: 6\n" in text
    assert "(3)inner()\n" in text
    kernel.client.input("p local")
    question(kernel)
    assert said(kernel) == "[2] 6\n"
    kernel.client.input("up")
    question(kernel)
    assert "(4)<module>()\n" in said(kernel)
    kernel.client.input("q")
    kernel.finish_rest(started)
    assert_works(kernel)


def test_post_mortem_by_default_is_on_the_rank_that_failed_first(kernel: Kernel) -> None:
    kernel.run(FAILS, allow_error=True)
    talk(kernel, "%hvddebug", [("[1] (Pdb) ", "q")])
    talk(kernel, "%hvddebug", [("[1] (Pdb) ", "p local"), ("[1] (Pdb) ", "q")])


def test_debug_magic_opens_on_the_failed_rank(kernel: Kernel) -> None:
    """It opened in the code that raises the ranks' error again in the notebook."""
    kernel.run(FAILS.replace("rank > 0", "rank == 1"), allow_error=True)
    talk(kernel, "%debug", [("[1] (Pdb) ", "p local"), ("[1] (Pdb) ", "q")])
    kernel.run("%hvd nothing", allow_error=True)
    assert talk(kernel, "%debug", []).text("stderr") == f"{NO_FRAME}\n"
    kernel.run("local = 3\n1 / 0", allow_error=True)
    talk(kernel, "%debug", [("ipdb> ", "p local"), ("ipdb> ", "q")])


def test_tensors_of_a_failed_cell_live_until_the_next_cell(kernel: Kernel) -> None:
    cell = """%%hvdrun
import gc, weakref
class Big: pass
def use(big):
    global seen
    seen = weakref.ref(big)
    1 / 0
use(Big())
"""
    kernel.run(cell, allow_error=True)
    outcome = kernel.run("%%hvdrun\ngc.collect()\nseen() is None", allow_error=True)
    assert outcome.shown == ["[0-2] True"]
    outcome = kernel.run("%hvddebug --rank 1", allow_error=True)
    assert "there is no failed cell to look at" in outcome.reply["evalue"]
    assert_works(kernel)


BOTH_WAIT = """import time
manager = __import__('hvd_kernel.magics').magics.manager_of(get_ipython())
while manager.prompts is None or len(manager.prompts.waiting()) < 2: time.sleep(0.05)"""


@pytest.mark.usefixtures("unhurried")
def test_hvdpdb_answers_the_prompts_of_a_job(kernel: Kernel) -> None:
    cell = "%%hvdrun --bg job\nv = rank\nif rank != 1: breakpoint()\nhvd.barrier()\nprint('v', v)"
    kernel.run(cell, prompts=True)
    kernel.run(BOTH_WAIT)
    text = kernel.run("%hvdpdb").text()
    assert [line for line in text.splitlines() if "Pdb" in line] == ["[0] (Pdb)", "[2] (Pdb)"]
    assert text.count("-> ") == 2
    assert kernel.run("%hvdpdb --ranks 0 p v + 40").text() == "[0] 40\n[0] (Pdb)\n"
    assert "no prompt on rank 1: choose from ranks 0,2" in kernel.run("%hvdpdb --ranks 1 n", allow_error=True).error
    kernel.run("%hvdpdb --ranks 0,2 v = v + 1")
    ended = "".join(f"[{rank}] is not at a prompt: it has ended the cell\n" for rank in (0, 2))
    assert kernel.run("%hvdpdb c").text() == ended  # and what they print now is the job's, however fast they are
    kernel.run("%hvdjobs --wait job")
    assert "[0-1] v 1\n[2] v 3\n" in kernel.run("%hvdjobs job").text()
    assert "no rank waits at a prompt" in kernel.run("%hvdpdb n", allow_error=True).error


def test_a8_a_rank_that_dies_at_its_prompt_ends_the_cell(kernel: Kernel) -> None:
    pid = int(kernel.run("%%hvdrun --ranks 1\nimport os\nos.getpid()").shown[0].removeprefix("[1] "))
    started = kernel.start("%%hvdrun\nif rank == 1: input('? ')\nhvd.barrier()", prompts=True)
    question(kernel)
    os.kill(pid, signal.SIGKILL)
    outcome = kernel.finish(started, timeout=PATIENCE_S, allow_error=True)
    assert outcome.reply["ename"] == "RankDied"
    assert_asked_no_more(kernel)


@pytest.mark.nightly
def test_terminal_prompt_is_a_line_ctrl_c_interrupts(tmp_path: Path) -> None:
    options = ["-P", "-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor"]
    terminal = pexpect.spawn(sys.executable, options, encoding="utf8", timeout=PATIENCE_S, cwd=tmp_path)

    def cell(number: int, line: str, code: str) -> None:
        terminal.expect_exact(f"In [{number}]: ")
        terminal.sendline(f"get_ipython().run_cell_magic('hvdrun', {line!r}, {code!r})")

    terminal.expect_exact("In [1]: ")
    terminal.sendline("%load_ext hvd_kernel")
    cell(2, "-np 2", "x = input('name? ') if rank == 1 else 0\nx")
    terminal.expect_exact("[1] name? ")
    terminal.sendline("Ada")
    terminal.expect_exact("[1] 'Ada'")
    cell(3, "", "y = 5\nhvd.barrier()\nif rank == 0: breakpoint()\nhvd.barrier()")
    terminal.expect_exact("[0] -> ")
    terminal.expect_exact("[0] (Pdb) ")
    terminal.sendline("!y = 6")
    terminal.expect_exact("[0] (Pdb) ")
    terminal.sendintr()
    terminal.expect_exact("ranks 0-1 interrupted, variables are kept")
    cell(4, "", "hvd.barrier()\ny")
    terminal.expect_exact("[0] 6")
    terminal.sendline("exit")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
