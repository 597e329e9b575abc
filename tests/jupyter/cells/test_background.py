"""Cells in the background, in a real kernel with two ranks: the notebook stays usable and gets the result of every job."""

from __future__ import annotations

import os
import queue
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hvdtest.cluster import until
from hvdtest.gate import Gate
from hvdtest.kernel import Kernel, tagged

from hvd_kernel.magics import messages

PATIENCE_S = 60.0
PATIENT = {  # on a busy machine ranks may take long to obey or to answer
    "background_STUCK_S": PATIENCE_S,
    "cell_view_GRACE_S": PATIENCE_S,
    "inspection_locate.__defaults__": (PATIENCE_S,),
}
pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.timeout(240),
    pytest.mark.cluster(2, setup=("%%hvdrun\nimport time",), figures=PATIENT),
]
RIGHT = "%%hvdrun\nimport torch\nint(hvd.allreduce(torch.tensor([rank + 1]), op=hvd.Sum))"


@pytest.fixture(autouse=True)
def idle(kernel: Kernel) -> Iterator[None]:
    """No job outlives its test."""
    yield
    kernel.run("%hvdcancel all")


def said(name: str) -> str:
    return f"job {name} on ranks 0-1: %hvdjobs, %hvdcancel {name}\n"


def rows(kernel: Kernel) -> dict[str, list[str]]:
    """The table: name -> ranks, state, steps."""
    lines = kernel.run("%hvdjobs").text().splitlines()
    return {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines[1:]}


def refused(kernel: Kernel, cell: str) -> str:
    return kernel.run(cell, allow_error=True).error


def late(kernel: Kernel, started: str, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    """Messages that belong to a cell that has ended."""
    found: list[dict[str, Any]] = []
    end = time.monotonic() + PATIENCE_S
    while not enough(found):
        try:
            message = kernel.client.get_iopub_msg(timeout=max(0.01, end - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"nothing more came: {[m['msg_type'] for m in found]}") from None
        if message["parent_header"].get("msg_id") == started:
            found.append(message)
    return found


def test_job_keeps_the_notebook_usable_and_prints_one_line(kernel: Kernel, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    outcome = kernel.run(f"%%hvdrun --bg train\n{gate.hold}\nprint('trained', rank)\nrank * 10")
    assert outcome.stored == [{"type": "stream", "name": "stdout", "text": said("train")}]
    for number in range(5):
        assert kernel.run(f"{number} + 1").shown == [str(number + 1)]  # the job cannot have ended
    assert rows(kernel)["train"] == ["0-1", "running"]
    assert kernel.run("%hvdjobs train").text() == "job train: running; its output comes when it has ended\n"
    gate.open()
    assert kernel.run("%hvdjobs --wait train").stored == []
    assert rows(kernel)["train"] == ["0-1", "done"]
    shown = kernel.run("%hvdjobs train")
    assert shown.text() == "[0] trained 0\n[1] trained 1\n"
    assert shown.shown == ["[0] 0\n[1] 10"]
    assert kernel.run(RIGHT).shown == ["[0-1] 3"]


def test_other_commands_are_refused_naming_the_job(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("a = 1")
    kernel.run("%%hvdrun --bg holds\ntime.sleep(600)")
    sentence = "UsageError: the ranks are busy with job holds: wait with %hvdjobs --wait holds, or %hvdcancel holds"
    for cell in ("%%hvdrun\n1", "%hvdpull time", "%hvdpush a", "%hvd stop", "%hvd restart", "%hvd start -np 3"):
        assert refused(kernel, cell) == sentence
    busy = sentence.removeprefix("UsageError: ")
    assert refused(kernel, "%%hvdrun --bg -np 3\n1") == f"UsageError: {messages.cluster_in_use(busy, 3)}"
    assert "has ranks 0-1" in refused(kernel, "%%hvdrun --bg --ranks 2\n1")
    assert "leave out --local or --bg" in refused(kernel, "%%hvdrun --bg --local\n1")
    assert "there is a job holds already, running" in refused(kernel, "%%hvdrun --bg holds\n1")
    prompting = kernel.run("%%hvdrun\n1", prompts=True, allow_error=True)
    assert "the ranks are busy with job holds: " in prompting.error
    assert [row.split()[:2] for row in kernel.run("%hvd status").text().splitlines()[1:]] == [
        ["0", "alive"],
        ["1", "alive"],
    ]


def test_jobs_run_one_after_another_in_order(kernel: Kernel, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    kernel.run("%%hvdrun\norder = []")
    kernel.run("mine = 7")
    kernel.run(f"%%hvdrun --bg first\n{gate.hold}\norder.append('first')")
    kernel.run("%%hvdrun --bg second --push mine\norder.append(('second', mine))")
    kernel.run("mine = 8")
    kernel.run("%%hvdrun --bg third --ranks 1\norder.append('third')")
    found = rows(kernel)
    assert [found[name] for name in ("first", "second", "third")] == [
        ["0-1", "running"],
        ["0-1", "queued"],
        ["1", "queued"],
    ], "ranks that others use are not given away: collectives need all of them"
    gate.open()
    kernel.run("%hvdjobs --wait")
    assert kernel.run("%%hvdrun\norder").shown == [
        "[0] ['first', ('second', 7)]\n[1] ['first', ('second', 7), 'third']"
    ]


def test_ranks_are_always_free_after_a_wait(kernel: Kernel) -> None:
    for number in range(20):
        kernel.run(f"%%hvdrun --bg again\nlast = {number}")
        kernel.run("%hvdjobs --wait again")
        assert kernel.run("%%hvdrun\nlast").shown == [f"[0-1] {number}"]


def test_failed_job_is_reported_in_table_output_and_wait(kernel: Kernel) -> None:
    cell = "import torch\nprint('begun')\nif rank: raise ValueError('bad shard')\nhvd.allreduce(torch.ones(2))"
    kernel.run(f"%%hvdrun --bg broken\n{cell}")
    waited = kernel.run("%hvdjobs --wait", allow_error=True)
    assert (waited.reply["ename"], waited.reply["evalue"]) == ("ValueError", "bad shard")
    assert waited.error.startswith("ValueError on rank 1\n")
    assert waited.error.endswith("[0] released, because rank 1 failed")
    assert rows(kernel)["broken"] == ["0-1", "failed: ValueError on rank 1"]
    shown = kernel.run("%hvdjobs broken")
    assert shown.text() == "[0-1] begun\n"
    assert "bad shard" in shown.text("stderr")
    assert kernel.run("%hvdjobs --wait").stored == [], "told once to who waits for all"
    assert refused(kernel, "%hvdjobs --wait broken").startswith("ValueError on rank 1\n")
    assert kernel.run(RIGHT).shown == ["[0-1] 3"]


def test_failure_is_announced_once_to_a_user(kernel: Kernel) -> None:
    kernel.run("%%hvdrun --bg unlucky\nraise KeyError('lost')")
    until(lambda: rows(kernel)["unlucky"][1].startswith("failed"))
    assert kernel.run("1").text("stderr") == ""
    told = kernel.run("1", prompts=True).text("stderr")
    assert told == "job unlucky failed: KeyError on ranks 0-1: 'lost' (%hvdjobs unlucky)\n"
    assert kernel.run("1", prompts=True).text("stderr") == ""
    assert refused(kernel, "%hvdjobs --wait").startswith("KeyError on ranks 0-1\n"), "a cell that waits still fails"


@pytest.mark.parametrize("where", ["time.sleep(600)", "hvd.barrier() if rank else time.sleep(600)", "while True: pass"])
def test_cancel_interrupts_ranks_in_every_call(kernel: Kernel, where: str) -> None:
    kernel.run("%%hvdrun\nkept, inside = rank + 1, False")
    kernel.run(f"%%hvdrun --bg endless\nprint('in')\n{where}")
    kernel.run("%%hvdrun --bg behind\nnever = True")
    assert kernel.run("%hvdcancel behind").text() == "job behind: cancelled\n"
    assert kernel.run("%hvdcancel endless").text() == "job endless: cancelled\n"
    why = refused(kernel, "%hvdjobs --wait endless").splitlines()  # with the ranks that they waited for, if long enough
    assert why[0] == "KeyboardInterrupt: ranks 0-1 interrupted, variables are kept"
    assert refused(kernel, "%hvdjobs --wait behind") == (
        "KeyboardInterrupt: job behind was cancelled before its turn came"
    )
    assert refused(kernel, "%hvdcancel endless") == "UsageError: job endless has ended already: cancelled"
    assert kernel.run("%%hvdrun\nkept, 'never' in globals()").shown == ["[0] (1, False)\n[1] (2, False)"]
    assert kernel.run(RIGHT).shown == ["[0-1] 3"]


def test_cancel_all_starts_no_queued_job(kernel: Kernel) -> None:
    kernel.run("%%hvdrun --bg a\ntime.sleep(600)")
    for name in "bc":
        kernel.run(f"%%hvdrun --bg {name}\nstarted = True")
    assert kernel.run("%hvdcancel all").text() == "job a: cancelled\njob b: cancelled\njob c: cancelled\n"
    assert kernel.run("%%hvdrun\n'started' in globals()").shown == ["[0-1] False"]
    assert kernel.run("%hvdcancel all").text() == "no job runs\n"


def test_values_are_available_when_the_job_is_done(kernel: Kernel, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    kernel.run("res, y = 'not yet', 'not yet'")
    kernel.run(f"%%hvdrun --bg -o res --pull y\n{gate.hold}\nprint('hi')\ny = rank * 2\nrank + 7")
    assert kernel.run("res, y").shown == ["('not yet', 'not yet')"]
    gate.open()
    kernel.run("%hvdjobs --wait")
    assert kernel.run("res[0], res[1], y[1], res.stdout").shown == ["(7, 8, 2, {0: 'hi', 1: 'hi'})"]


def test_pushed_values_are_those_at_submission(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("import numpy; grown = numpy.zeros(3)")
    with Gate(tmp_path) as gate:
        kernel.run(f"%%hvdrun --bg --push grown\n{gate.hold}\nfloat(grown.sum())")
        kernel.run("grown += 1")
    kernel.run("%hvdjobs --wait")
    assert kernel.run("%%hvdrun\nfloat(grown.sum())").shown == ["[0-1] 0.0"]


WAITS = """
import sys, threading, traceback
stack = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident])
assert any(call.name == "wait_end" and call.filename.endswith("magics/jobs.py") for call in stack)
"""


def test_wait_times_out_and_the_job_continues(kernel: Kernel) -> None:
    kernel.run("%%hvdrun --bg slow\ntime.sleep(600)")
    late_word = refused(kernel, "%hvdjobs --wait slow --timeout 0.2")
    assert late_word == "HvdTimeout: job slow has not ended within 0.2 s and goes on: %hvdcancel slow ends it"
    shell = kernel.subshell()
    waiting = kernel.start("%hvdjobs --wait", prompts=True)
    until(lambda: kernel.reply_of(shell, WAITS)["status"] == "ok", "the cell waits for the job")
    kernel.manager.interrupt_kernel()
    outcome = kernel.finish_rest(waiting, allow_error=True)
    assert outcome.reply["ename"] == "KeyboardInterrupt"
    assert rows(kernel)["slow"] == ["0-1", "running"]


def test_a_time_limit_of_the_cell_ends_the_job(kernel: Kernel) -> None:
    kernel.run("%%hvdrun --bg limited --timeout 0.3\ntime.sleep(600)")
    assert refused(kernel, "%hvdjobs --wait limited") == (
        "HvdTimeout: the cell took longer than 0.3 s and was interrupted"
    )
    assert rows(kernel)["limited"] == ["0-1", "failed: HvdTimeout"]


def test_the_table_counts_steps(kernel: Kernel) -> None:
    cell = """%%hvdrun --bg steps
import torch
p = torch.nn.Parameter(torch.zeros(2))
o = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=0.1), named_parameters=[("p", p)])
for _ in range(3): o.zero_grad(); p.sum().backward(); o.step()
"""
    for _ in range(2):
        kernel.run(cell)
        kernel.run("%hvdjobs --wait steps")
        assert rows(kernel)["steps"][1].split() == ["done", "3"], "those of this job, not of all before it"


def test_user_sees_the_text_so_far_of_a_running_job(kernel: Kernel, tmp_path: Path) -> None:
    inside, gate = tmp_path / "in", Gate(tmp_path)
    text = "import sys\nprint('epoch 1')\nprint('half', rank, file=sys.stderr)\nprint('open line', end='')\n"
    signs = f"open({str(inside)!r} + str(rank), 'w').close()\n"
    kernel.run("%%hvdrun\nprint('of an earlier cell')")
    kernel.run(f"%%hvdrun --bg talks\n{text}{signs}{gate.hold}\nprint(' ends')")
    kernel.run("%%hvdrun --bg behind\n1")
    until(lambda: all(Path(f"{inside}{rank}").exists() for rank in range(2)))
    told = kernel.run("%hvdjobs talks", prompts=True)
    first, *rest = told.text().splitlines()
    assert re.fullmatch(r"job talks: running \d+ s; so far:", first)
    assert rest == ["[0-1] epoch 1", "[0-1] open line"]
    assert told.text("stderr") == "[0] half 0\n[1] half 1\n"
    assert kernel.run("%hvdjobs behind", prompts=True).text() == "job behind: queued\n"
    assert kernel.run("%hvdjobs talks").text() == "job talks: running; its output comes when it has ended\n"
    gate.open()
    kernel.run("%hvdjobs --wait")
    assert kernel.run("%hvdjobs talks", prompts=True).text() == "[0-1] epoch 1\n[0-1] open line ends\n"


def completed(kernel: Kernel, code: str) -> list[str]:
    return kernel.client.complete(code, reply=True, timeout=PATIENCE_S)["content"]["matches"]


def test_names_of_jobs_complete(kernel: Kernel) -> None:
    kernel.run("%%hvdrun --bg over-and-done\n1")
    kernel.run("%hvdjobs --wait")
    kernel.run("%%hvdrun --bg over.again\ntime.sleep(600)")
    for line in ("%hvdjobs over", "%hvdjobs --wait over", "%hvdjobs --wait first over"):
        assert completed(kernel, line) == ["over-and-done", "over.again"]
    assert completed(kernel, "%hvdcancel over") == ["over.again"], "what has ended cannot be cancelled"
    offered = completed(kernel, "%hvdcancel ")  # with keywords of Python, which IPython adds
    assert [name for name in offered if name in ("over-and-done", "over.again", "all")] == ["over.again", "all"]
    assert completed(kernel, "%hvdjobs --w") == ["--wait"]


def test_invalid_job_names(kernel: Kernel) -> None:
    assert "'all' is not a job's name" in refused(kernel, "%%hvdrun --bg all\n1")
    assert refused(kernel, "%hvdjobs nobody").startswith("UsageError: there is no job 'nobody'; there is ")
    assert "%hvdcancel: name one job" in refused(kernel, "%hvdcancel")


def test_user_sees_dashboard_and_output_in_the_starting_cell(kernel: Kernel, tmp_path: Path) -> None:
    seen, gate = tmp_path / "seen", tmp_path / "go"
    log = f"i = 0\nwhile not os.path.exists({str(gate)!r}):\n    i += 1; hvd.log(i=i); time.sleep(0.1)\n"
    started = kernel.start(f"%%hvdrun --bg shown\nimport os\n{log}print('over', rank)\nrank", prompts=True)
    outcome = kernel.finish(started)
    assert outcome.text() == said("shown")
    assert outcome.shown == ["job shown: running"]
    awaits = f"import asyncio, os\nwhile not os.path.exists({str(seen)!r}): await asyncio.sleep(0.02)\n'answered'"
    local = kernel.start(awaits)
    # The dashboard updates while the notebook's own cell awaits.
    messages = late(kernel, started[0], lambda found: sum(m["msg_type"] == "comm_msg" for m in found) >= 4)
    kinds = [m["msg_type"] for m in messages]
    assert "application/vnd.jupyter.widget-view+json" in messages[kinds.index("update_display_data")]["content"]["data"]
    seen.touch()
    gate.touch()
    messages = late(kernel, started[0], lambda found: any(m["msg_type"] == "stream" for m in found))
    assert messages[-1]["content"]["text"] == "[0] over 0\n[1] over 1\n"
    result = late(kernel, started[0], lambda found: any(m["msg_type"] == "display_data" for m in found))
    assert result[-1]["content"]["data"] == {"text/plain": "[0] 0\n[1] 1"}
    assert kernel._reply(local[0], time.monotonic() + PATIENCE_S)["status"] == "ok"
    assert "running" not in kernel.run("%hvdjobs", prompts=True).text()


def test_one_cell_at_a_time_uses_the_ranks_from_any_shell(kernel: Kernel, tmp_path: Path) -> None:
    inside, gate = tmp_path / "in", Gate(tmp_path)
    shell = kernel.subshell()
    busy = kernel.start(f"%%hvdrun\nopen({str(inside)!r}, 'w').close()\n{gate.hold}\n'main'")
    until(inside.exists)
    refusals = [kernel.reply_of(shell, f"%%hvdrun{how}\n1") for how in ("", " --bg late")]
    gate.open()
    assert kernel.finish(busy).shown == ["[0-1] 'main'"]
    assert [(reply["ename"], reply["evalue"]) for reply in refusals] == [("UsageError", messages.BUSY)] * 2
    assert "there is no job 'late'" in refused(kernel, "%hvdjobs late")
    started = kernel.reply_of(shell, "%%hvdrun --bg aside\ntime.sleep(600)")
    assert started["status"] == "ok"
    assert "the ranks are busy with job aside" in refused(kernel, "%%hvdrun\n1")
    assert kernel.run("%hvdcancel aside").text() == "job aside: cancelled\n"


def headless(kernel: Kernel) -> list[list[dict[str, Any]]]:
    cells = [
        "%%hvdrun --bg one\nimport random\ntime.sleep(random.random() / 5)\nprint('one', rank)",
        "%%hvdrun --bg two -o two\ntime.sleep(random.random() / 5)\n1 / rank",
        "%hvdjobs --wait one",
        "%hvdjobs --wait",
        "%hvdjobs one",
        "%hvdjobs two",
    ]
    return [[_unnumbered(output) for output in kernel.run(cell, allow_error=True).stored] for cell in cells]


def _unnumbered(output: dict[str, Any]) -> dict[str, Any]:
    """Remove the number of the cell, which IPython counts."""
    return {key: value for key, value in output.items() if key != "traceback"} | (
        {"text": output["text"].split("In[")[0]} if "text" in output else {}
    )


def test_two_runs_of_a_notebook_store_the_same(kernel: Kernel) -> None:
    first = headless(kernel)
    assert [len(outputs) for outputs in first] == [1, 1, 0, 1, 1, 2]
    assert headless(kernel) == first


@pytest.mark.parametrize("how", ["await asyncio.sleep(600)", "await asyncio.gather(*map(asyncio.sleep, (600, 600)))"])
def test_top_level_await_works_on_ranks_and_can_be_interrupted(kernel: Kernel, how: str) -> None:
    cell = "%%hvdrun\nimport asyncio\nsum(await asyncio.gather(*(asyncio.sleep(0.01, n + rank) for n in range(3))))"
    assert kernel.run(cell).shown == ["[0] 3\n[1] 6"]
    assert kernel.run(f"%%hvdrun --bg waits\nprint('in')\n{how}").text() == said("waits")
    assert kernel.run("%hvdcancel waits").text() == "job waits: cancelled\n"
    failed = kernel.run(
        "%%hvdrun\nawait asyncio.sleep(0.01)\nawait asyncio.gather(asyncio.sleep(0), 1/0)", allow_error=True
    )
    assert failed.error.startswith("ZeroDivisionError on ranks 0-1\n")
    assert kernel.run(RIGHT).shown == ["[0-1] 3"]


def go_deaf(sign: Path) -> str:
    """A cell of which rank 1 cannot be interrupted any more when there is the sign."""
    mask = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])"
    lines = "import signal, time", mask, f"open({str(sign)!r}, 'w').close()", "time.sleep(600)"
    return "if rank:" + "".join(f"\n    {line}" for line in lines)


@pytest.mark.nightly
def test_third_cancel_replaces_only_unresponsive_ranks(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%%hvdrun\nkept = 'kept' if rank == 0 else 'lost'")
    kernel.run(f"%%hvdrun --bg deaf\n{go_deaf(tmp_path / 'deaf')}")
    until((tmp_path / "deaf").exists)
    left = "(__import__('hvd_kernel.magics').magics.manager_of(get_ipython()).jobs.find('deaf').left or list)()"
    until(lambda: kernel.run(left).shown == ["[1]"], "rank 0 has ended the cell")
    with kernel.figures(background_STUCK_S=1.0):
        for _ in range(2):
            word = refused(kernel, "%hvdcancel deaf")
            assert word.startswith("ClusterError: job deaf was interrupted and has not ended within 1 s: rank 1 "), word
            assert "sleep" in word
    kernel.run("%hvdcancel deaf", allow_error=True)
    until(lambda: rows(kernel)["deaf"] == ["0-1", "cancelled"])
    assert "rank 1 was ended and replaced" in refused(kernel, "%hvdjobs --wait deaf")
    assert kernel.run("%%hvdrun --ranks 0\nkept").shown == ["[0] 'kept'"]
    assert kernel.run("%%hvdrun --ranks 1\n'kept' in globals()").shown == ["[1] False"]
    assert kernel.run(RIGHT).shown == ["[0-1] 3"]


@pytest.mark.nightly
def test_force_ends_first_the_job_and_then_the_ranks(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%%hvdrun --bg doomed\ntime.sleep(600)")
    kernel.run("%%hvdrun --bg behind\n1")
    assert kernel.run("%hvd restart --force", timeout=120).text() == "ranks 0-1 ready\n"
    found = rows(kernel)
    assert (found["doomed"], found["behind"]) == (["0-1", "cancelled"], ["0-1", "cancelled"])
    kernel.run(f"%%hvdrun --bg deaf --ranks 1\n{go_deaf(tmp_path / 'deaf')}")
    until((tmp_path / "deaf").exists)
    assert kernel.run("%hvd restart --force", timeout=120).text() == "ranks 0-1 ready\n"
    assert rows(kernel)["deaf"] == ["1", "cancelled"]
    assert kernel.run(RIGHT).shown == ["[0-1] 3"]
    threads = "import threading; sum(t.name == 'hvd-jobs' for t in threading.enumerate())"
    until(lambda: kernel.run(threads).shown == ["0"])


@pytest.mark.parametrize("how", [pytest.param("shutdown", marks=pytest.mark.nightly), "kill"])
def test_kernel_that_exits_with_a_job_leaves_no_process(tmp_path: Path, how: str) -> None:
    with Kernel(tmp_path) as kernel:
        kernel.run("%%hvdrun -np 2 --bg forever\nimport time; time.sleep(600)", timeout=120)
        assert len(tagged(kernel.tag)) >= 4
        if how == "kill":
            os.kill(kernel.pid, signal.SIGKILL)
            kernel.assert_nothing_left()


def test_wait_for_all_jobs_fails_after_the_last_one(kernel: Kernel, tmp_path: Path) -> None:
    """It raised at the first failure, while the second job still ran and blocked every later cell."""
    with Gate(tmp_path) as gate:
        kernel.run("%%hvdrun --bg broken\nraise ValueError('of the first')")
        kernel.run(f"%%hvdrun --bg slow\n{gate.arrive}\n{gate.hold}\nraise KeyError('of the second')")
        started = kernel.start("%hvdjobs --wait")
        gate.wait_for(0, 1)
    outcome = kernel.finish(started, allow_error=True)
    assert outcome.reply["ename"] == "ValueError"
    assert "KeyError" in outcome.text("stderr"), "of the other one it is shown what went wrong"
    assert [row[1].split()[0] for row in rows(kernel).values()][-2:] == ["failed:", "failed:"]
    assert kernel.run(RIGHT).shown == ["[0-1] 3"], "the ranks are free"
