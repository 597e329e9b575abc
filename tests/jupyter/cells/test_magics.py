"""%%hvdrun and its family in a real kernel, on a real cluster of four ranks."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hvdtest.gate import Gate
from hvdtest.kernel import Kernel, Outcome

from hvd_kernel.magics.commands.variables import undefined
from hvd_kernel.magics.messages import restart, restart_would_lose
from hvd_kernel.processes import bandwidth
from hvd_kernel.processes.bandwidth import SIZES

pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.timeout(400),
    # On a busy machine ranks may take long to obey when their time is over.
    pytest.mark.cluster(4, figures={"cell_view_GRACE_S": 60.0}),
]


def test_the_example_of_the_readme(kernel: Kernel) -> None:
    cell = "%%hvdrun -np 4\nimport torch\nx = torch.full((3,), float(rank))\nhvd.allreduce(x, name='x', op=hvd.Sum)"
    assert kernel.run(cell).shown == ["[0-3] tensor([6., 6., 6.])"]


def test_rank_equals_mpi_rank_horovod_rank_and_engine_id(kernel: Kernel) -> None:
    cell = "%%hvdrun\nimport os\n(rank, hvd.rank(), int(os.environ['OMPI_COMM_WORLD_RANK']), size, hvd.size())"
    assert kernel.run(cell).shown == ["\n".join(f"[{r}] ({r}, {r}, {r}, 4, 4)" for r in range(4))]


def test_streams_are_merged_and_in_rank_order(kernel: Kernel) -> None:
    cell = """%%hvdrun
import sys
print("start")
print("rank", rank)
if rank % 2: print("odd")
print("end")
print("careful", file=sys.stderr)
"""
    outcome = kernel.run(cell)
    assert outcome.text() == ("[0-3] start\n[0] rank 0\n[1] rank 1\n[2] rank 2\n[3] rank 3\n[1,3] odd\n[0-3] end\n")
    assert outcome.text("stderr") == "[0-3] careful\n"
    assert [output["type"] for output in outcome.stored] == ["stream", "stream"]


def test_twenty_identical_cells_store_the_same(kernel: Kernel) -> None:
    cell = """%%hvdrun
import sys, time, random
from IPython.display import HTML, display
for i in range(5):
    print(rank, "line", i)
    time.sleep(random.random() / 500)
print("common", file=sys.stderr)
display(HTML(f"<b>{rank % 2}</b>"))
rank // 2
"""
    first = kernel.run(cell).stored
    assert [output["type"] for output in first] == ["stream", "stream"] + ["display_data"] * 5
    for _ in range(19):
        assert kernel.run(cell).stored == first


@pytest.mark.parametrize("prompts", [False, True])
def test_traffic_of_a_short_cell_is_at_most_twice_the_payload(kernel: Kernel, *, prompts: bool) -> None:
    cell = "%%hvdrun\nfor i in range(800): print(f'{rank}:{i:021d}')"
    with kernel.figures(cell_output_SHOW_AFTER_S=600.0):  # short also on a busy machine
        outcome = kernel.run(cell, prompts=prompts)
    payload = 4 * 800 * 24
    assert outcome.text() == "".join(f"[{r}] {r}:{i:021d}\n" for r in range(4) for i in range(800))
    assert outcome.size <= 2 * payload, outcome.size / payload


def test_text_arrives_while_the_cell_runs(kernel: Kernel, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        cell = f"%%hvdrun\nfor i in range(20): print('tick', i)\n{gate.hold}\nprint('end')"
        started = kernel.start(cell, prompts=True)
        while "tick 19" not in str(kernel.wait_for("comm_open", "comm_msg")["data"]):
            pass
    assert kernel.finish_rest(started).text() == "".join(f"[0-3] tick {i}\n" for i in range(20)) + "[0-3] end\n"


def test_headless_sends_no_widget_and_no_update(kernel: Kernel) -> None:
    outcome = kernel.run("%%hvdrun\nimport time\nhvd.log(loss=0.5)\ntime.sleep(1.3)\nprint('done')")
    kinds = [m["msg_type"] for m in outcome.messages if m["msg_type"] not in ("status", "execute_input")]
    assert kinds == ["display_data", "stream"]
    data = outcome.contents("display_data")[0]["data"]
    assert data["text/plain"] == "hvd dashboard: 4 ranks"
    assert "<svg" in data["image/svg+xml"]
    assert outcome.text() == "[0-3] done\n"


def test_user_gets_a_live_dashboard_that_ends_as_a_picture(kernel: Kernel, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        started = kernel.start(f"%%hvdrun\nhvd.log(loss=0.25)\n{gate.hold}", prompts=True)
        kernel.wait_for("comm_open", of=started)
        assert "application/vnd.jupyter.widget-view+json" in kernel.wait_for("display_data")["data"]
        for _ in range(2):
            kernel.wait_for("comm_msg")
    outcome = kernel.finish_rest(started)
    assert "0.25" in outcome.contents("update_display_data")[-1]["data"]["image/svg+xml"]


def test_cell_that_logs_shows_a_board_and_the_next_does_not(kernel: Kernel) -> None:
    for loss in (2.5, 2.25):
        assert kernel.run(f"%%hvdrun\nhvd.log(loss={loss})").shown == ["hvd dashboard: 4 ranks"]
    assert kernel.run("%%hvdrun\n1").shown == ["[0-3] 1"]


def test_progress_bars_use_one_line_and_floods_are_bounded(kernel: Kernel) -> None:
    assert kernel.run("%%hvdrun\nfor i in range(101): print(f'\\r{i}%', end='')").text() == "[0-3] 100%\n"
    outcome = kernel.run("%%hvdrun\nfor i in range(50_000): print(rank, i)")
    assert len(outcome.text()) < 200_000
    assert "[0] 0 0\n" in outcome.text()
    assert "[3] 3 49999\n" in outcome.text()
    assert " … 48,000 lines more: %hvdlogs --cell " in outcome.text()


def test_variables_persist_and_ranks_choose(kernel: Kernel) -> None:
    kernel.run("%%hvdrun\ny = rank * 10")
    assert kernel.run("%%hvdrun --ranks 0,2-3\ny").shown == ["[0] 0\n[2] 20\n[3] 30"]
    assert kernel.run("%%hvdrun --targets ::2\n'even'").shown == ["[0,2] 'even'"]
    assert kernel.run("%%hvdrun -t root\ny").shown == ["[0] 0"]
    refused = kernel.run("%%hvdrun --ranks 4\ny", allow_error=True)
    assert refused.error == "UsageError: --ranks 4: there is no rank 4; the cluster has ranks 0-3"


def test_push_pull_and_out(kernel: Kernel) -> None:
    cell = "%%hvdrun --push a,b --pull c,d -o res\nprint('from', rank)\nc = a + b + rank\nd = 'same'\nc * 2"
    kernel.run("a, b = 1, 100")
    kernel.run(cell)
    assert kernel.run("c").shown == ["[0] 101\n[1] 102\n[2] 103\n[3] 104"]
    assert kernel.run("c[3], c.rank(0), dict(d)[1], d").shown == ["(104, 101, 'same', [0-3] 'same')"]
    assert kernel.run("res[2], res.stdout[1], list(res)").shown == ["(206, 'from 1', [202, 204, 206, 208])"]
    kernel.run("import numpy; big = numpy.arange(1_000_000)\n%hvdpush big --ranks 1")
    assert kernel.run("%%hvdrun --ranks 1\nint(big.sum())").shown == ["[1] 499999500000"]
    kernel.run("%%hvdrun\nbig = rank")
    kernel.run("%hvdpull big --ranks 1:")
    assert kernel.run("big").shown == ["[1] 1\n[2] 2\n[3] 3"]
    assert kernel.run("import numpy as np\nlist(big), np.asarray(big).tolist(), sum(big)").shown == [
        "([1, 2, 3], [1, 2, 3], 6)"
    ]


def test_classes_of_cells_belong_to_the_receiver(kernel: Kernel) -> None:
    define = "import enum\nclass Color(enum.Enum):\n    RED = 1\n"
    cell = "red = hvd.broadcast_object(Color.RED, 0)\nred is Color.RED, isinstance(red, Color)"
    assert kernel.run(f"%%hvdrun\n{define}{cell}").shown == ["[0-3] (True, True)"]
    kernel.run(f"{define}mine = Color.RED\n%hvdpush mine")
    assert kernel.run("%%hvdrun\nmine is Color.RED").shown == ["[0-3] True"]
    kernel.run("%hvdpull red")
    assert kernel.run("[each is Color.RED for each in red]").shown == ["[True, True, True, True]"]
    changed = "%%hvdrun --ranks 1\nclass Color(enum.Enum):\n    RED = 2\n"
    kernel.run(changed)
    assert kernel.run("%%hvdrun\nhvd.broadcast_object(Color.RED, 0).value").shown == ["[0-3] 1"]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%%hvdrun -np4\n1", "UsageError: %%hvdrun: '-np4' is not an option: write -np 4, with a space"),
        ("%%hvdrun -np 0\n1", "UsageError: %%hvdrun: -np: '0' must be a whole number, at least 1"),
        ("%%hvdrun --push nowhere\n1", "UsageError: there is no variable `nowhere` in the notebook to push"),
        ("%hvd zip", "UsageError: %hvd: 'zip' is not understood; %hvd help lists the commands"),
        ("%hvdpull", "UsageError: %hvdpull: name the variables, as in %hvdpull a b"),
        ("%hvdauto maybe", "UsageError: %hvdauto: 'maybe' is not understood: write %hvdauto on or %hvdauto off"),
    ],
)
def test_wrong_calls_give_a_one_sentence_error(kernel: Kernel, cell: str, message: str) -> None:
    assert kernel.run(cell, allow_error=True).error == message


def test_help_lists_every_subcommand(kernel: Kernel) -> None:
    page = kernel.run("%hvd?").reply["payload"][0]["data"]["text/plain"]
    for word in ("start -np 4", "restart", "stop", "status", "doctor"):
        assert f"    %hvd {word} " in page, page


def test_pulling_names_the_ranks_that_define_a_variable(kernel: Kernel) -> None:
    kernel.run("%%hvdrun # don't run this on rank 1\nif rank in (0, 2): partly = rank")
    absent = kernel.run("%hvdpull not_there", allow_error=True)
    assert absent.error == "ClusterError: no rank has a variable `not_there`"
    partly = kernel.run("%hvdpull partly", allow_error=True)
    assert partly.error == f"ClusterError: {undefined('partly', [0, 2], [1, 3])}"
    assert kernel.run("%hvdpull partly --ranks 0,2\npartly").shown == ["[0] 0\n[2] 2"]


def test_code_is_not_expanded_and_may_begin_with_comments(kernel: Kernel) -> None:
    kernel.run("x_local = 'here'")
    cell = "# a comment\n\n%%hvdrun\nx_local = 'there'\nprint('{x_local}', '$x_local')"
    assert kernel.run(cell).text() == "[0-3] {x_local} $x_local\n"


def test_rich_results_and_figures(kernel: Kernel) -> None:
    html = "%%hvdrun\nfrom IPython.display import HTML\nHTML('<i>x</i>')"
    assert kernel.run(html).contents("display_data")[0]["data"]["text/html"] == "<i>x</i>"
    figure = """%%hvdrun --ranks 0,1
import matplotlib.pyplot as plt
if rank == 1:
    plt.plot([1, 2]); plt.show()
"""
    label, picture = kernel.run(figure, timeout=120).contents("display_data")
    assert label["data"] == {"text/plain": "[1]"}
    assert "image/png" in picture["data"]


def test_local_option_runs_the_cell_in_the_notebook_too(kernel: Kernel) -> None:
    outcome = kernel.run("%%hvdrun --local\nboth = 'x' * 2\nprint('hi')\nboth")
    assert outcome.text() == "[0-3] hi\nhi\n"
    assert outcome.shown == ["[0-3] 'xx'", "'xx'"]
    assert kernel.run("both").shown == ["'xx'"]
    failed = kernel.run("%%hvdrun --local\nif 'rank' not in dir(): raise LookupError('only here')", allow_error=True)
    assert (failed.reply["ename"], failed.reply["evalue"]) == ("LookupError", "only here")


def number(outcome: Outcome) -> int:
    """Return the prompt number that the notebook shows for a cell."""
    found: int = outcome.reply["execution_count"]
    return found


def test_cells_have_the_notebooks_number_on_the_ranks(kernel: Kernel, tmp_path: Path) -> None:
    """Cell [4] failed in "Cell In[2]": rank cells had their own counter."""
    kernel.run("'a cell here alone'")
    defined = number(kernel.run("%%hvdrun\ndef inverse(x):\n    return 1 / x"))
    kernel.run("'another one'")
    failed = kernel.run("%%hvdrun\ninverse(0)", allow_error=True)
    assert f"Cell In[{number(failed)}], line 1\n" in failed.error
    assert f"Cell In[{defined}], line 2, in inverse(x)\n" in failed.error

    twice = "for word in ('one', 'two'): get_ipython().run_cell_magic('hvdrun', '--ranks 0', f'print({word!r})')"
    assert kernel.run(f"%hvdlogs --cell {number(kernel.run(twice))} --ranks 0").text() == "[0] one\n[0] two\n"

    with Gate(tmp_path) as gate:
        job = number(kernel.run(f"%%hvdrun --bg waits\nprint('in')\n{gate.arrive}\n{gate.hold}\n1 / 0"))
        gate.wait_for(*range(4))
        kernel.run("'a cell beside it'")
        assert f"    cell {job}:3: " in kernel.run("%hvd stacks").text()
        assert kernel.run(f"%hvdlogs --cell {job}").text() == "[0-3] in\n"
    assert f"Cell In[{job}], line 4\n" in kernel.run("%hvdjobs --wait waits", allow_error=True).error


def test_library_frames_are_in_logs_but_not_in_tracebacks(kernel: Kernel) -> None:
    """A forgotten hvd.init() was 6,918 characters, of which one line was the user's."""
    code = "%%hvdrun\nimport torch\nhvd.shutdown()\nhvd.allreduce(torch.ones(3))"
    failed = kernel.run(code, allow_error=True)
    kernel.run("%%hvdrun\nhvd.init()")
    cell = number(failed)
    lines = [line for line in failed.error.splitlines() if line and not line.startswith("------")]
    assert re.fullmatch(rf"… \d+ frames in hvd_kernel and torch \(%hvdlogs --cell {cell} shows them\)", lines.pop(6))
    assert [line.split() for line in lines] == [
        ["HorovodInternalError", "on", "ranks", "0-3"],
        ["HorovodInternalError", "Traceback", "(most", "recent", "call", "last)"],
        ["Cell", f"In[{cell}],", "line", "3"],
        ["1", "import", "torch"],
        ["2", "hvd.shutdown()"],
        ["---->", "3", "hvd.allreduce(torch.ones(3))"],
        ["HorovodInternalError:", "Horovod", "has", "not", "been", "initialized;", "use", "hvd.init()."],
    ]
    logged = kernel.run(f"%hvdlogs --cell {cell} --ranks 1 --stream stderr").text("stderr")
    assert "/hvd_kernel/torch/mpi_ops.py:" in logged
    assert ": Horovod has not been initialized; use hvd.init()." in logged
    whole = kernel.run("%%hvdrun\n%xmode Verbose\nhvd.allreduce(3)", allow_error=True).error
    kernel.run("%%hvdrun\n%xmode Context")
    assert "/hvd_kernel/torch/mpi_ops.py:" in whole


@pytest.mark.parametrize(
    ("cell", "near"),
    [
        ("%%hvdrn\n1", "Cell magic `%%hvdrn` not found: did you mean %%hvdrun?"),
        pytest.param(
            "%hvdlog", "Line magic function `%hvdlog` not found: did you mean %hvdlogs?", marks=pytest.mark.nightly
        ),
    ],
)
def test_mistyped_magic_names_the_nearest_one(kernel: Kernel, cell: str, near: str) -> None:
    outcome = kernel.finish_rest(kernel.start(cell), allow_error=True)
    assert outcome.text("stderr") == f"UsageError: {near}\n"


def test_cells_without_history_get_different_numbers(kernel: Kernel) -> None:
    """nbval: the numbers are those of a notebook that runs from the top."""
    before = number(kernel.run("1"))
    for after in (1, 2):
        kernel.finish((kernel.client.execute("1", store_history=False), time.monotonic()))
        started = kernel.client.execute("%%hvdrun\n1 / 0", store_history=False), time.monotonic()
        failed = kernel.finish(started, allow_error=True)
        assert f"Cell In[{before + 2 * after}], line 1\n" in failed.error
    assert number(kernel.run("1")) == before + 1


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.nightly) for turn in range(1, 5))])
def test_c2_mismatch_error_is_the_same_in_every_run(kernel: Kernel, turn: int) -> None:
    """The first rank to raise released the others before they received the mismatch: each run named other ranks."""
    outcome = kernel.run("%%hvdrun\nimport torch\nhvd.allreduce(torch.ones(3 + rank), name='m')", allow_error=True)
    lines = outcome.error.splitlines()
    assert lines[0] == "Mismatch on ranks 0-3"
    assert lines[-1] == (
        "Mismatch: Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [3], but another rank sent a tensor"
        " of shape [4]. (rank 0: [3]; rank 1: [4]; rank 2: [5]; rank 3: [6])"
    )
    assert kernel.run("%%hvdrun\nint(hvd.allreduce(torch.tensor([rank]), op=hvd.Sum))").shown == ["[0-3] 6"]


def test_c2_rank_continuing_after_a_mismatch_is_released(kernel: Kernel) -> None:
    """Rank 1 catches the error, so it does not end; the ranks that left would never call the collective."""
    code = """%%hvdrun
import torch
import hvd_kernel.worker.shell.control
hvd_kernel.worker.shell.control._UNWATCHED_S = 600.0
try:
    hvd.allreduce(torch.ones(3 + rank), name='m')
except hvd.HorovodInternalError:
    if rank != 1: raise
    hvd.barrier()
"""
    lines = kernel.run(code, allow_error=True).error.splitlines()
    assert lines[0] == "Mismatch on ranks 0,2-3"
    assert lines[-1] == "[1] released, because rank 0 failed"
    assert kernel.run("%%hvdrun\nint(hvd.allreduce(torch.tensor([rank]), op=hvd.Sum))").shown == ["[0-3] 6"]


def test_rank_that_raises_fails_only_the_cell(kernel: Kernel) -> None:
    kernel.run("%%hvdrun\nkept = rank + 1")
    cell = "%%hvdrun\nimport torch\nif rank == 2: raise ValueError('bad shard')\nhvd.allreduce(torch.ones(4), name='g')"
    outcome = kernel.run(cell, allow_error=True)
    assert (outcome.reply["ename"], outcome.reply["evalue"]) == ("ValueError", "bad shard")
    assert outcome.error.startswith("ValueError on rank 2\n")
    assert outcome.error.endswith("[0-1,3] released, because rank 2 failed")
    assert outcome.error.count("Traceback (most recent call last)") == 1
    again = kernel.run("%%hvdrun\nint(hvd.allreduce(torch.tensor([kept]), name='again', op=hvd.Sum))")
    assert again.shown == ["[0-3] 10"]


def test_the_same_error_on_all_ranks_is_one_traceback(kernel: Kernel) -> None:
    kernel.run("here = 1")
    outcome = kernel.run("%%hvdrun\nprint('before')\nhere", allow_error=True)
    assert outcome.text() == "[0-3] before\n"
    assert outcome.reply["ename"] == "NameError"
    assert outcome.error.startswith("NameError on ranks 0-3\n")
    assert outcome.error.endswith("`here` exists in the notebook, not on the ranks: add --push here")


def test_interrupt_in_a_collective_that_cannot_complete(kernel: Kernel, tmp_path: Path) -> None:
    kernel.run("%%hvdrun\nkept = rank + 1")
    with Gate(tmp_path) as gate:
        cell = f"%%hvdrun\nprint('in')\n{gate.arrive}\nhvd.barrier() if rank else __import__('time').sleep(600)"
        started = kernel.start(cell, prompts=True)
        gate.wait_for(0, 1, 2, 3)
    kernel.manager.interrupt_kernel()
    outcome = kernel.finish_rest(started, allow_error=True)
    assert outcome.reply["ename"] == "KeyboardInterrupt"
    assert outcome.error.splitlines()[0] == "KeyboardInterrupt: ranks 0-3 interrupted, variables are kept"
    assert outcome.text() == "[0-3] in\n"
    again = kernel.run("%%hvdrun\nimport torch\nint(hvd.allreduce(torch.tensor([kept]), name='again', op=hvd.Sum))")
    assert again.shown == ["[0-3] 10"]


def test_timeout(kernel: Kernel) -> None:
    outcome = kernel.run("%%hvdrun --timeout 0.5\nimport time; time.sleep(600)", allow_error=True)
    assert outcome.reply["ename"] == "HvdTimeout"
    assert outcome.error == "HvdTimeout: the cell took longer than 0.5 s and was interrupted"
    assert kernel.run("%%hvdrun\n1").shown == ["[0-3] 1"]


def test_auto(kernel: Kernel) -> None:
    assert kernel.run("%hvdauto on").text() == "plain cells run on the ranks\n"
    try:
        assert kernel.run("size").shown == ["[0-3] 4"]
        assert kernel.run("%who_ls str").shown[0].startswith("[")
        silent = kernel.client.execute("auto_silent = 1", silent=True)
        assert kernel._reply(silent, time.monotonic() + 60)["status"] == "ok"
        asked = kernel.client.is_complete("for x in y:")
        assert kernel._reply(asked, time.monotonic() + 60)["status"] == "incomplete"
    finally:
        assert kernel.run("%hvdauto off").text() == "plain cells run here\n"
    assert kernel.run("auto_silent").shown == ["1"]


def test_status_and_doctor(kernel: Kernel) -> None:
    rows = kernel.run("%hvd").text().splitlines()
    assert rows[0].split() == ["rank", "state", "pid", "host", "device"]
    assert [row.split()[:2] for row in rows[1:]] == [[str(rank), "alive"] for rank in range(4)]
    report = kernel.run("%hvd doctor").text()
    assert report.endswith("everything is in place\n"), report
    names = [line[4:].split("  ")[0] for line in report.splitlines()[:-1]]
    assert names == [
        "mpiexec", "mpi4py", "native core", "frameworks", "GPUs", "MPS", "cores", "memory", "/dev/shm", "leftovers",
        "warm ranks", "kernelspec", "widgets",
    ]  # fmt: skip


def test_new_ranks_get_kept_variables_loss_needs_force(kernel: Kernel) -> None:
    """Kept names are sent after one line of text; with another number alone, surviving ranks stay (test_resize.py)."""
    kernel.run(
        "%%hvdrun -np 4\nimport torch, hvd_kernel\nlost = 1\nmodel = torch.full((3,), 7.0 + rank)\n"
        "def refuse(): raise RuntimeError('only once')\n"
        "class Fussy:\n    def __reduce__(self): return refuse, ()\n"
        "fussy = Fussy()\nhvd_kernel.keep('model', 'fussy')"
    )
    cell = "%%hvdrun -np 2 --mpi-args '--bind-to none'{force}\nprint('lost' in globals(), model.tolist(), size)"
    refused = kernel.run(cell.format(force=""), allow_error=True)
    assert refused.error == f"UsageError: {restart_would_lose('2 ranks instead of 4', ['lost'])}"
    assert kernel.run("%%hvdrun\nlost, size").shown == ["[0-3] (1, 4)"], "nothing has happened"
    outcome = kernel.run(cell.format(force=" --force"), timeout=120)
    assert outcome.text() == (
        f"{restart('2 ranks instead of 4', ['model'])}\n"
        "`fussy` could not be restored: RuntimeError: only once\n[0-1] False [7.0, 7.0, 7.0] 2\n"
    )
    kernel.run("%%hvdrun\nmodel += 1")
    kept = kernel.run("%hvd start -np 1", timeout=120)
    assert kept.text() == "rank 0 stays, rank 1 has left\nrank 0 ready\n"
    assert kernel.run("%%hvdrun\nmodel.tolist(), size").shown == ["[0] ([8.0, 8.0, 8.0], 1)"]
    assert kernel.run("%hvd restart -np 3", timeout=120).text() == "ranks 0-2 ready\n"
    assert kernel.run("%hvd start").text() == "ranks 0-2 ready\n"
    assert kernel.run("%hvd stop").text() == "the ranks are stopped\n"
    assert kernel.run("%hvd stop").text() == "no ranks were running\n"
    refused = kernel.run("%hvdpush lost_not", allow_error=True)
    assert refused.reply["ename"] == "UsageError"
    refused = kernel.run("zz = 1\n%hvdpush zz", allow_error=True)
    assert refused.reply["ename"] == "ClusterError"
    assert "%hvd start" in refused.error
    assert kernel.run("%%hvdrun -np 2\nsize", timeout=120).shown == ["[0-1] 2"]


def test_killed_rank_is_named_and_a_start_replaces_it(kernel: Kernel) -> None:
    kernel.run("%%hvdrun -np 2\nkept = rank", timeout=120)
    outcome = kernel.run("%%hvdrun\nimport os, signal\nif rank: os.kill(os.getpid(), signal.SIGKILL)", allow_error=True)
    assert outcome.reply["ename"] == "RankDied"
    assert "rank 1" in outcome.error
    assert [row.split()[:2] for row in kernel.run("%hvd").text().splitlines()[1:]] == [["0", "alive"], ["1", "dead"]]
    refused = kernel.run("%%hvdrun\nkept", allow_error=True)
    assert refused.reply["ename"] == "ClusterError"
    assert "%hvd restart" in refused.error
    kernel.run("%hvdpull kept --ranks 0")
    assert kernel.run("kept").shown == ["0"]
    assert kernel.run("%hvd start", timeout=120).text() == "ranks 0-1 ready\n"
    assert kernel.run("%%hvdrun\nsize").shown == ["[0-1] 2"]


# ``%hvd bench`` in a kernel and ``hvd.bench()`` on its ranks: real measurements, kept where the panel finds them.


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_magic_and_ranks_measure_and_store_bandwidth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Kernel(tmp_path) as kernel:
        outcome = kernel.run("%hvd bench -np 2", timeout=300)
        lines = outcome.text().splitlines()
        assert lines[0] == "allreduce of float32, sum, 2 ranks, 3 rounds"
        rows = {line.split()[1] for line in lines[2:]}
        assert {"hvd_kernel", "torch", "memory"} <= rows
        assert not [line for line in lines if "!" in line]
        assert "<svg" in outcome.contents("display_data")[0]["data"]["image/svg+xml"]
        first = bandwidth.kept(2)
        assert first is not None
        assert len(first.seconds["hvd_kernel"]) == len(first.seconds["memory copy"]) == len(SIZES)
        told = kernel.run("%%hvdrun -np 2\nfound = hvd.bench()\nprint(found)\nfound.ranks, hvd.size()", timeout=300)
        assert "[0-1] allreduce of float32, sum, 2 ranks, 3 rounds" in told.text()
        second = bandwidth.kept(2)
        assert second is not None
        assert second.time > first.time
        after = kernel.run("%%hvdrun\nimport torch\nfloat(hvd.allreduce(torch.ones(1), op=hvd.Sum, name='after'))")
        assert after.shown == ["[0-1] 2.0"]
