"""A script of the cells that ran on the ranks, for ``hvdrun -np 4 python train.py``. Pure.

A value that the notebook pushed becomes an argument of the command line with that value as its default; so papermill's
parameters, which cells push, are arguments of the script.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvd_kernel.errors import UsageError
from hvd_kernel.magics.export import cell_code
from hvd_kernel.magics.export.ran_cell import RanCell

_READY = {  # a name that is there in every cell -> the line that makes it
    "rank": "rank = hvd.rank()",
    "size": "size = hvd.size()",
    "local_rank": "local_rank = hvd.local_rank()",
    "device": 'device = registry.adapter("{package}").device(hvd.local_rank(), ())',
}
_IMPORTED = {  # a name that IPython has in every cell -> its import
    "display": "from IPython.display import display",
}


@dataclass(frozen=True)
class Script:
    """The script, and what of the cells is not in it, in sentences."""

    text: str
    told: list[str]


def script(cells: Sequence[RanCell], size: int, name: str, api: str, package: str) -> Script:
    """Return the script of cells, in the order in which they ran.

    Parameters
    ----------
    cells
        At least one.
    size
        The number of ranks they ran on.
    name
        The script's file name.
    api, package
        The module that cells know as ``hvd``, and the framework that it is for.

    Raises
    ------
    UsageError
        Naming the cell that a script cannot have, and why.
    """
    arguments = _arguments(cells)
    bodies, told, futures = list[str](), list[str](), set[str]()
    for cell in cells:
        if cell.failed:
            told.append(f"cell [{cell.number}] failed and is left out")
            continue
        code = cell_code.plain(cell.number, cell.code)
        futures |= {*code.futures}
        told += [f"cell [{cell.number}]: {magic.splitlines()[0]} is left out" for magic in code.left_out]
        text = code.text if cell.ranks is None else cell_code.only_on(cell.ranks, code.text)
        parts = [*_given(cell, arguments), text]
        bodies.append("\n".join([f"# %% cell [{cell.number}]", *filter(None, parts)]))
    used = {word for body in bodies for word in re.findall(r"[A-Za-z_]\w*", body)} | (
        {"rank"} if any(cell.ranks is not None or cell.dealt for cell in cells) else set()
    )
    title = f'"""Cells of a notebook, for: hvdrun -np {size} python {name}"""'
    future = [f"from __future__ import {', '.join(sorted(futures))}"] if futures else []
    head = [title, *future, *_head(used, arguments, api, package)]
    return Script("\n\n".join([*head, *bodies]) + "\n", told)


def _arguments(cells: Sequence[RanCell]) -> dict[str, str]:
    """Return the pushed variables, each with the value that was pushed first."""
    found: dict[str, str] = {}
    for cell in cells:
        for name, text in cell.pushed.items():
            if text is None:
                raise _no_literal(cell, name)
            found.setdefault(name, text)
        for name, text in (item for each in cell.dealt.values() for item in each.items()):
            if text is None:
                raise _no_literal(cell, name)
    return found


def _no_literal(cell: RanCell, name: str) -> UsageError:
    return UsageError(
        f"%hvd export: cell [{cell.number}] got `{name}` from the notebook, which a script does not have, and it is no "
        f"number, text, list or dict to write down: make `{name}` in a cell on the ranks"
    )


def _given(cell: RanCell, arguments: Mapping[str, str]) -> list[str]:
    """Return the lines that give a cell what the notebook gave it."""
    lines = [
        f"{name} = arguments.{name}" if arguments[name] == text else f"{name} = {text}"
        for name, text in cell.pushed.items()
    ]
    names = dict.fromkeys(name for each in cell.dealt.values() for name in each)
    for name in names:
        parts = ", ".join(f"{rank}: {each[name]}" for rank, each in cell.dealt.items())
        lines.append(f"{name} = {{{parts}}}[rank]")
    text = "\n".join(lines)
    return [cell_code.only_on(cell.ranks, text)] if lines and cell.ranks is not None else lines


def _head(used: set[str], arguments: Mapping[str, str], api: str, package: str) -> list[str]:
    ready = [line.format(package=package) for name, line in _READY.items() if name in used]
    standard = ["import argparse"] * bool(arguments)
    if any(_kind(text) == "ast.literal_eval" for text in arguments.values()):
        standard.append("import ast")
    ours = [line for name, line in _IMPORTED.items() if name in used and not _makes(used, line)]
    ours += [f"import {api} as hvd"]
    ours += ["from hvd_kernel.frameworks import registry"] * ("device" in used)
    parts = ["\n".join(standard), "\n".join(ours)]
    parts.append("\n".join(["hvd.init()", *ready]))
    if arguments:
        rows = [f"parser.add_argument({_argument(name, text)})" for name, text in arguments.items()]
        parts.append("\n".join(["parser = argparse.ArgumentParser()", *rows, "arguments = parser.parse_args()"]))
    return [part for part in parts if part]


def _makes(used: set[str], line: str) -> bool:
    return line.split()[1].partition(".")[0] in used  # cells import it themselves


def _argument(name: str, text: str) -> str:
    kind = _kind(text)
    how = "action=argparse.BooleanOptionalAction" if kind == "bool" else f"type={kind}"
    return f'"--{name.replace("_", "-")}", {how}, default={text}'


def _kind(text: str) -> str:
    value = ast.literal_eval(text)
    return type(value).__name__ if type(value) in {bool, int, float, str} else "ast.literal_eval"
