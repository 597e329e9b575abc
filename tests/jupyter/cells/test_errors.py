"""Errors on ranks, in a real kernel: displayed ones that the cell survives, and errors that end it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hvdtest.cluster import until
from hvdtest.gate import Gate
from hvdtest.kernel import Kernel, Outcome
from hvdtest.panel_rows import ranks_with_line, waits

pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.timeout(400),
    pytest.mark.cluster(2, setup=("%%hvdrun\nimport torch",)),
]

SUM = "int(hvd.allreduce(torch.ones(1), name='after', op=hvd.Sum))"


def colourless(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def cell(kernel: Kernel, code: str) -> Outcome:
    return kernel.run(f"%%hvdrun\n{code}", allow_error=True)


def assert_sound(kernel: Kernel) -> None:
    assert cell(kernel, SUM).shown == ["[0-1] 2"]


DISPLAYED = {  # code of rank 1 -> the last line of what it displays
    "repr of HTML": ("display(type('Bad', (), {'_repr_html_': lambda self: 1 / 0})())", "ZeroDivisionError: division by zero"),
    "repr": ("display(type('Bad', (), {'__repr__': lambda self: 1 / 0})())", "ZeroDivisionError: division by zero"),
    "widget": ("import ipywidgets\nwith ipywidgets.Output(): 1 / 0", "ZeroDivisionError: division by zero"),
    "except": ("try: 1 / 0\nexcept ArithmeticError: get_ipython().showtraceback()", "ZeroDivisionError: division by zero"),
    "nested cell": ("get_ipython().run_cell('1 / 0')", "ZeroDivisionError: division by zero"),
    "nested syntax": ("get_ipython().run_cell('1 +')", "SyntaxError: invalid syntax"),
    "nested usage": ("get_ipython().run_cell('%nosuchmagic')", "UsageError: Line magic function `%nosuchmagic` not found."),
    "nested exit": ("get_ipython().run_cell('raise SystemExit(3)')", "SystemExit: 3"),
    "captured": ("get_ipython().run_cell_magic('capture', '', '1 / 0')", "ZeroDivisionError: division by zero"),
    "script": (
        "open(f'{folder}/bad.py', 'w').write('1 / 0')\nget_ipython().run_line_magic('run', f'{folder}/bad.py')",
        "ZeroDivisionError: division by zero",
    ),
    "mathtext": (
        "import matplotlib.pyplot as plt\nplt.title('$\\\\bad{$'); plt.show()", "ValueError: "
    ),
}  # fmt: skip
RARE = {"nested syntax", "nested usage", "nested exit", "captured", "mathtext"}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.nightly) if kind in RARE else kind for kind in DISPLAYED]
)
def test_displayed_error_does_not_end_the_cell(kernel: Kernel, kind: str) -> None:
    code, last = DISPLAYED[kind]
    body = "\n".join(f"    {line}" for line in code.splitlines())
    prepare = "%matplotlib inline\nimport tempfile\nfolder = tempfile.mkdtemp()\n"
    tidy = "__import__('shutil').rmtree(folder)\n"
    outcome = cell(kernel, f"{prepare}if rank == 1:\n{body}\n{tidy}{SUM}")
    assert outcome.reply["status"] == "ok", outcome.error
    assert outcome.shown[-1] == "[0-1] 2", "the peers are not released by an error that the cell survives"
    lines = colourless(outcome.text("stderr")).splitlines()
    assert any(line.startswith(f"[1] {last}") for line in lines), lines
    assert_sound(kernel)


def test_displayed_error_of_all_ranks_is_shown_once(kernel: Kernel) -> None:
    code = "get_ipython().run_cell('1 / 0')\nprint('on')\n" + SUM
    outcome = cell(kernel, code)
    assert (outcome.text(), outcome.shown) == ("[0-1] on\n", ["[0-1] 2"])
    assert colourless(outcome.text("stderr")).splitlines()[-1] == "[0-1] ZeroDivisionError: division by zero"


def test_error_of_the_last_expressions_repr_is_displayed(kernel: Kernel) -> None:
    outcome = cell(kernel, "class Bad:\n    def __repr__(self): return 1 / 0\nBad()")
    assert (outcome.reply["status"], outcome.shown) == ("ok", [])
    assert colourless(outcome.text("stderr")).splitlines()[-1] == "[0-1] ZeroDivisionError: division by zero"


@pytest.mark.parametrize("event", ["pre_run_cell", pytest.param("post_run_cell", marks=pytest.mark.nightly)])
def test_failing_callback_does_not_end_the_cell(kernel: Kernel, event: str) -> None:
    cell(kernel, f"def bad(_): 1 / 0\nif rank == 1: get_ipython().events.register('{event}', bad)")
    outcome = cell(kernel, SUM)
    cell(kernel, f"if rank == 1: get_ipython().events.unregister('{event}', bad)")
    assert (outcome.reply["status"], outcome.shown) == ("ok", ["[0-1] 2"])
    assert "Error in callback <function bad" in outcome.text()
    assert colourless(outcome.text("stderr")).splitlines()[-1] == "[1] ZeroDivisionError: division by zero"


ENDING = {  # code of rank 1 -> name of the error that ends the cell there
    "raise": ("1 / 0", "ZeroDivisionError"),
    "await": ("await __import__('asyncio').sleep(0)\n1 / 0", "ZeroDivisionError"),
    "shown before": ("try: 1 / 0\nexcept ArithmeticError:\n    get_ipython().showtraceback()\n    raise", "ZeroDivisionError"),
    "raised again": ("get_ipython().run_cell('1 / 0').raise_error()", "ZeroDivisionError"),
    "after a nested cell": ("get_ipython().run_cell('1 / 0')\n{}['k']", "KeyError"),
    "timeit": ("get_ipython().run_line_magic('timeit', '1 / 0')", "ZeroDivisionError"),
    "usage": ("get_ipython().run_line_magic('nosuchmagic', '')", "UsageError"),
    "syntax at run time": ("exec('1 +')", "SyntaxError"),
    "exit": ("raise SystemExit(3)", "SystemExit"),
}  # fmt: skip
OFTEN = {"raise", "await", "raised again"}


@pytest.mark.parametrize(
    "kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.nightly) for kind in ENDING]
)
def test_error_that_ends_the_cell_releases_the_peers(kernel: Kernel, kind: str) -> None:
    code, ename = ENDING[kind]
    body = "\n".join(f"    {line}" for line in code.splitlines())
    outcome = cell(kernel, f"if rank == 1:\n{body}\nhvd.barrier()")
    assert outcome.reply["ename"] == ename, outcome.error
    assert outcome.error.startswith(f"{ename} on rank 1\n")
    assert outcome.error.endswith("\n[0] released, because rank 1 failed")
    assert_sound(kernel)


@pytest.mark.parametrize("code", ["1 +", "return 1", "%nosuchmagic"])
def test_cell_that_cannot_run_fails_with_its_error_once(kernel: Kernel, code: str) -> None:
    outcome = cell(kernel, code)
    assert outcome.reply["ename"] in ("SyntaxError", "UsageError")
    assert outcome.reply["evalue"].split(" (")[0] in outcome.error.splitlines()[-1]
    assert (outcome.text(), outcome.text("stderr")) == ("", "")
    assert_sound(kernel)


ALONE = "import time\nprint('in', flush=True)\nif rank == 1: raise ValueError('the real reason')\ntime.sleep(600)"


def until_seen(kernel: Kernel, identity: str, seen: Callable[[list[dict[str, Any]]], bool]) -> None:
    """Take messages of a running cell until its panel shows something."""
    messages: list[dict[str, Any]] = []
    while not seen(messages):
        message = kernel._next(kernel.client.get_iopub_msg, time.monotonic() + 60)
        if message["parent_header"].get("msg_id") == identity:
            messages.append(message)


RAISED = "rank 1 raised ValueError: the real reason; rank 0 still runs: interrupt the cell to end it"


def test_a9_error_is_shown_at_once_and_is_the_cells_error(kernel: Kernel) -> None:
    with kernel.figures(cell_output_SHOW_AFTER_S=0.0):
        started = kernel.start(f"%%hvdrun\n{ALONE}", prompts=True)
        until_seen(kernel, started[0], lambda messages: RAISED in waits(messages))
        kernel.press()
        outcome = kernel.finish_rest(started, allow_error=True)
    assert (outcome.reply["ename"], outcome.reply["evalue"]) == ("ValueError", "the real reason")
    lines = outcome.error.splitlines()
    assert lines[0] == "ValueError on rank 1"
    assert lines[-2:] == ["ValueError: the real reason", "rank 0 interrupted, variables are kept"]
    assert_sound(kernel)


CLOCK = """import os, sys, time, types
runner = sys.modules["hvd_kernel.magics.cell_view"]
runner.time = types.SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * os.path.exists({later!r}))"""


def test_a9_error_before_the_timeout_is_in_the_cell_and_log(kernel: Kernel, tmp_path: Path) -> None:
    later = tmp_path / "an hour later"
    kernel.run(CLOCK.format(later=str(later)))
    with kernel.figures(cell_output_SHOW_AFTER_S=0.0, cell_view_GRACE_S=3600.0):
        started = kernel.start(f"%%hvdrun --timeout 600\n{ALONE}", prompts=True)
        until_seen(kernel, started[0], lambda messages: RAISED in waits(messages))
        later.touch()
        outcome = kernel.finish_rest(started, allow_error=True)
    kernel.run("runner.time = time")
    assert (outcome.reply["ename"], outcome.reply["evalue"]) == ("ValueError", "the real reason")
    assert outcome.error.splitlines()[-1] == "the cell took longer than 600 s and was interrupted"
    number = outcome.reply["execution_count"]
    log = colourless(kernel.run(f"%hvdlogs --cell {number} --stream stderr").text("stderr"))
    assert log.splitlines()[-1] == "[1] ValueError: the real reason"
    assert_sound(kernel)


def test_no_raise_error_does_not_hide_an_interrupt(kernel: Kernel) -> None:
    with kernel.figures(cell_output_SHOW_AFTER_S=0.0):
        started = kernel.start(f"%%hvdrun --no-raise-error\n{ALONE}", prompts=True)
        until_seen(kernel, started[0], lambda messages: len(waits(messages)) > 0)
        kernel.press()
        assert kernel.finish_rest(started, allow_error=True).reply["ename"] == "ValueError"
    assert_sound(kernel)


UNSEEN = """import time
from IPython.core.ultratb import AutoFormattedTB
formatted, plain = [], AutoFormattedTB.structured_traceback
def structured_traceback(self, *args, **kwargs):
    formatted.append(args)
    return plain(self, *args, **kwargs)
AutoFormattedTB.structured_traceback = structured_traceback
"""


@pytest.mark.parametrize(
    "code",
    ["time.sleep(600)", "await __import__('asyncio').sleep(600)", "get_ipython().run_cell('time.sleep(600)')\n1"],
)
def test_no_traceback_is_formatted_for_an_interrupt(kernel: Kernel, code: str) -> None:
    """Ranks formatted it for up to 18 s, twice each, and the notebook did not show it."""
    cell(kernel, UNSEEN)
    with kernel.figures(cell_output_SHOW_AFTER_S=0.0):
        started = kernel.start(f"%%hvdrun\nhvd.barrier()\nprint('in', flush=True)\n{code}", prompts=True)
        until_seen(kernel, started[0], lambda messages: len(ranks_with_line(messages, "in")) == 2)
        kernel.press()
        outcome = kernel.finish_rest(started, allow_error=True)
    assert outcome.error == "KeyboardInterrupt: ranks 0-1 interrupted, variables are kept"
    assert cell(kernel, "len(formatted)").shown == ["[0-1] 0"]
    cell(kernel, "1 / 0")
    assert cell(kernel, "AutoFormattedTB.structured_traceback = plain\nlen(formatted)").shown == ["[0-1] 1"]


def test_rank_that_formats_a_traceback_is_not_in_the_cells_code(kernel: Kernel, tmp_path: Path) -> None:
    """It was reported in the cell's own code, at a line of a library that IPython formats with."""
    with Gate(tmp_path) as gate:
        slow = (
            f"class Slow(Exception):\n    def _render_traceback_(self):\n        {gate.hold}\n        return ['Slow']"
        )
        kernel.run(f"%%hvdrun --bg slow\n{slow}\nraise Slow")
        expected = "[0-1] formatting the traceback of an error\n"
        until(lambda: kernel.run("%hvd stacks").text() == expected, "both ranks format a traceback")
    assert kernel.run("%hvdjobs --wait slow", allow_error=True).reply["ename"] == "Slow"
    assert_sound(kernel)
