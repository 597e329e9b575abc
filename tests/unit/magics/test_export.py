"""``%hvd export``: the text of the script, from the cells that ran."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.export import Script, ScriptCell, literals, only_on, plain, script


def of(*cells: ScriptCell) -> Script:
    return script(cells, 4, "train.py", "hvd_kernel.torch", "torch")


def test_cells_with_pushed_values() -> None:
    cells = [
        ScriptCell(
            2,
            "import torch\ntorch.manual_seed(seed)\nmodel = torch.nn.Linear(n, 1).to(device)",
            None,
            literals({"seed": 3, "n": 2}),
        ),
        ScriptCell(3, "print(names)", (1, 3), {}, {1: {"names": "['a']"}, 3: {"names": "['b']"}}),
        ScriptCell(4, "1 / 0", failed=True),
        ScriptCell(5, "seed, n", None, literals({"seed": 4, "n": 2, "fast_path": True, "sizes": [1, 2]})),
    ]
    assert (
        of(*cells).text
        == '''"""Cells of a notebook, for: hvdrun -np 4 python train.py"""

import argparse
import ast

import hvd_kernel.torch as hvd
from hvd_kernel.frameworks import registry

hvd.init()
rank = hvd.rank()
device = registry.adapter("torch").device(hvd.local_rank(), ())

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=3)
parser.add_argument("--n", type=int, default=2)
parser.add_argument("--fast-path", action=argparse.BooleanOptionalAction, default=True)
parser.add_argument("--sizes", type=ast.literal_eval, default=[1, 2])
arguments = parser.parse_args()

# %% cell [2]
seed = arguments.seed
n = arguments.n
import torch
torch.manual_seed(seed)
model = torch.nn.Linear(n, 1).to(device)

# %% cell [3]
if rank in (1, 3):
    names = {1: ['a'], 3: ['b']}[rank]
if rank in (1, 3):
    print(names)

# %% cell [5]
seed = 4
n = arguments.n
fast_path = arguments.fast_path
sizes = arguments.sizes
seed, n
'''
    )
    assert of(*cells).notes == ["cell [4] failed and is left out"]


def test_ipython_syntax_is_translated() -> None:
    found = of(
        ScriptCell(
            1, "from __future__ import annotations\n%matplotlib inline\n%time x = hvd.size()\n!ls -l\ndisplay(x)"
        ),
        ScriptCell(2, "%%time\ny = 2\nprint(y)"),
    )
    assert found.text.splitlines()[2:] == [
        "from __future__ import annotations",
        "",
        "from IPython.display import display",
        "import hvd_kernel.torch as hvd",
        "",
        "hvd.init()",
        "size = hvd.size()",
        "",
        "# %% cell [1]",
        "# left out: %matplotlib inline",
        "x = hvd.size()",
        "# left out: !ls -l",
        "display(x)",
        "",
        "# %% cell [2]",
        "y = 2",
        "print(y)",
    ]
    assert found.notes == ["cell [1]: %matplotlib inline is left out", "cell [1]: !ls -l is left out"]
    ast.parse(found.text)


def test_texts_over_several_lines_are_not_indented() -> None:
    code = 'if x:\n    y = """a\n  b"""\n    z = f"""{\n1}\nc"""\nw = 1'
    wanted = 'if rank == 0:\n    if x:\n        y = """a\n  b"""\n        z = f"""{\n1}\nc"""\n    w = 1'
    assert only_on((0,), code) == wanted
    for x in (False, True):
        inside: dict[str, Any] = {"rank": 0, "x": x}
        outside = dict(inside)
        exec(wanted, inside)
        exec(code, outside)
        del inside["__builtins__"], outside["__builtins__"]
        assert inside == outside


def test_a_cell_of_comments_alone_for_some_ranks_is_still_python() -> None:
    assert only_on((2,), "# nothing") == "if rank == 2:\n    pass"


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        (
            ScriptCell(3, "files = !ls"),
            r"cell \[3\] has a magic or a command inside other code, which a script cannot: files =",
        ),
        (
            ScriptCell(4, "await f()"),
            r"cell \[4\] awaits outside of a function, which a script cannot: use asyncio.run",
        ),
        (ScriptCell(5, "x", pushed=literals({"x": object()})), r"cell \[5\] got `x` from the notebook"),
        (ScriptCell(6, "x", None, {}, {0: literals({"x": object()})}), r"cell \[6\] got `x` from the notebook"),
        (ScriptCell(7, "for i in range(2):\n    !ls"), r"cell \[7\] has a magic or a command inside other code"),
        (ScriptCell(8, "1 +"), r"cell \[8\] is not Python: invalid syntax in line 1"),
    ],
    ids=["assigned command", "await", "pushed object", "dealt object", "in a loop", "no Python"],
)
def test_unexportable_code_is_named(cell: ScriptCell, why: str) -> None:
    with pytest.raises(UsageError, match=f"^%hvd export: {why}"):
        of(cell)


def test_await_in_a_function_is_not_top_level() -> None:
    assert plain(1, "async def f():\n    await g()").text == "async def f():\n    await g()"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        ("a'b", '"a\'b"'),
        ({"a": [1, None]}, "{'a': [1, None]}"),
        (float("nan"), None),
        (float("inf"), None),
        (list(range(10_000)), None),
        ([object()], None),
        (object(), None),
    ],
)
def test_literal_equals_the_value(value: Any, text: str | None) -> None:
    assert literals({"x": value}) == {"x": text}
