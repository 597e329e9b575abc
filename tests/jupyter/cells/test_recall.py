"""Earlier cells on ranks under IPython's names, and IPython's pager and next-input payloads."""

from __future__ import annotations

import re

import pytest
from hvdtest.kernel import Kernel, Outcome

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400), pytest.mark.cluster(2)]


def cell(kernel: Kernel, code: str) -> Outcome:
    return kernel.run(f"%%hvdrun\n{code}")


def text_of(kernel: Kernel, code: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", cell(kernel, code).text())


def number(outcome: Outcome) -> int:
    count: int = outcome.reply["execution_count"]
    return count


def test_results_and_inputs_have_the_notebooks_numbers(kernel: Kernel) -> None:
    cell(kernel, "for name in ('_', '__', '___'): globals().pop(name, None)")  # IPython leaves a user's own `_` alone
    first = number(cell(kernel, "10 + rank"))
    kernel.run("'a cell of the notebook'")
    second = number(cell(kernel, "20 + rank"))
    assert second == first + 2
    assert cell(kernel, f"_, __, _{first}, Out[{second}]").shown == ["[0] (20, 10, 10, 20)\n[1] (21, 11, 11, 21)"]
    assert cell(kernel, f"In[{first}], In[{first + 1}], _i{second}").shown == ["[0-1] ('10 + rank', '', '20 + rank')"]
    assert text_of(kernel, f"%history -n {first}-{second}").split() == [
        *("[0-1]", f"{first}:", "10", "+", "rank"),
        *("[0-1]", f"{second}:", "20", "+", "rank"),
    ]


def test_three_results_are_kept_and_gc_releases_them(kernel: Kernel) -> None:
    """Every result may hold tensors: they do not pile up."""
    cell(
        kernel,
        "import gc, weakref\nclass Big: pass\nseen = []\ndef big():\n    seen.append(weakref.ref(big := Big()))\n    return big",
    )
    numbers = [number(cell(kernel, "big()")) for _ in range(5)]
    alive = "gc.collect()\nprint([ref() is not None for ref in seen], sorted(Out))"
    assert cell(kernel, alive).text() == f"[0-1] [False, False, True, True, True] {numbers[2:]}\n"
    kernel.run("%hvd gc")
    assert cell(kernel, alive).text() == "[0-1] [False, False, False, False, False] []\n"
    assert cell(kernel, "7").shown == ["[0-1] 7"]
    assert cell(kernel, "_, __").shown == ["[0-1] (7, '')"]


def test_underscore_of_the_user_is_kept(kernel: Kernel) -> None:
    cell(kernel, "_ = 'mine'")
    cell(kernel, "5")
    assert cell(kernel, "_").shown == ["[0-1] 'mine'"]
    cell(kernel, "del _")


MODEL = 'class Model:\n    """A model of a test."""\n    def forward(self): return 1\nmodel = Model()\ndef work(): return "worked"'
PAGED = {
    "model?": "A model of a test.",
    "work??": 'return "worked"',
    "%pinfo model": "A model of a test.",
    "%pdoc model": "A model of a test.",
    "%psource work": 'def work(): return "worked"',
    "%prun model.forward()": "function calls",
    "%page size": "2",
    "help(Model)": "A model of a test.",
    "%load {file}": "loaded = 1",
    "%recall 1": "",
}


def test_pager_and_next_input_are_shown_as_text_once(kernel: Kernel) -> None:
    """All of them showed nothing."""
    cell(kernel, MODEL)
    cell(kernel, "import tempfile\nfile = tempfile.mkstemp(suffix='.py')[1]\nopen(file, 'w').write('loaded = 1')")
    for code, expected in PAGED.items():
        lines = text_of(kernel, code).splitlines()
        assert any(line.startswith("[0-1]") and expected in line for line in lines), (code, lines)
    cell(kernel, "__import__('os').unlink(file)")


def test_pager_of_ranks_that_differ_is_merged(kernel: Kernel) -> None:
    cell(kernel, f"{MODEL}\nif rank: Model.__doc__ = 'Another model.'")
    lines = text_of(kernel, "%pdoc model").splitlines()
    assert [line for line in lines if "model" in line] == ["[0]     A model of a test.", "[1]     Another model."]
