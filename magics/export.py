"""Export of the cells that ran on the ranks, as a script for ``hvdrun -np 4 python train.py``. Pure.

A value that the notebook pushed becomes an argument of the command line with that value as its default; so papermill's
parameters, which cells push, are arguments of the script.

``%time`` and ``%%time`` give way to what they time; other magics, and commands of the system, become comments.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from IPython.core.inputtransformer2 import TransformerManager

from hvd_kernel.errors import UsageError

_LONGEST = 10_000
"""Characters of a value that a script may hold."""

Literals = Mapping[str, str | None]
"""Variables with their values as literals; None: no literal is equal to the value."""

Given = tuple[Literals, Mapping[int, Literals]]
"""Variables that all ranks of a cell got, and those that each rank got separately."""


@dataclass(frozen=True)
class ScriptCell:
    """A cell that ran on the ranks, and the variables that its line sent to them."""

    number: int
    code: str
    ranks: tuple[int, ...] | None = None  # None: all
    pushed: Literals = field(default_factory=dict)
    dealt: Mapping[int, Literals] = field(default_factory=dict)  # the part of each rank, by --scatter
    failed: bool = False


def literals(values: Mapping[str, Any]) -> Literals:
    """Return values as literals.

    Example: ``literals({"lr": 0.1, "model": nn.Linear(1, 1)})`` is ``{"lr": "0.1", "model": None}``.
    """
    return {name: _literal(value) for name, value in values.items()}


def _literal(value: Any) -> str | None:
    if not isinstance(value, bool | int | float | complex | str | bytes | list | tuple | dict | set | None):
        return None
    text = repr(value)
    try:
        same = len(text) <= _LONGEST and bool(ast.literal_eval(text) == value)
    except (ValueError, SyntaxError, TypeError):
        return None
    return text if same else None


_SHELL = "get_ipython"
_TIMER = "time"
_FUTURE = "__future__"


class Code(NamedTuple):
    """The code of one cell."""

    text: str
    left_out: list[str]  # magics and commands, as they were typed
    futures: list[str]  # names imported from __future__, which a script imports at its top


def plain(number: int, code: str) -> Code:
    """Return the code without IPython's own syntax.

    Raises
    ------
    UsageError
        A magic or a command is part of an expression or of a block, or the cell has an await at its top level.
    """
    text = TransformerManager().transform_cell(code)  # type: ignore[no-untyped-call]
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UsageError(f"%hvd export: cell [{number}] is not Python: {error.msg} in line {error.lineno}") from None
    if any(isinstance(node, ast.Await | ast.AsyncFor | ast.AsyncWith) for node in _outside_functions(tree)):
        raise UsageError(
            f"%hvd export: cell [{number}] awaits outside of a function, which a script cannot: use asyncio.run(...)"
        )
    lines, left_out, futures = text.splitlines(), list[str](), list[str]()
    for node in reversed(tree.body):
        place = slice(node.lineno - 1, node.end_lineno)
        if isinstance(node, ast.ImportFrom) and node.module == _FUTURE:
            futures += [alias.name for alias in node.names]
            lines[place] = []
        elif _uses_shell(node):
            kept, magic = _without_shell(number, node, "\n".join(lines[place]))
            left_out += [magic] if not kept else []
            lines[place] = kept or [f"# left out: {line}" for line in magic.splitlines()]
    return Code("\n".join(lines).strip("\n"), left_out[::-1], futures)


def only_on(ranks: tuple[int, ...], code: str) -> str:
    """Return code that runs on these ranks alone."""
    condition = f"rank == {ranks[0]}" if len(ranks) == 1 else f"rank in {ranks}"
    inside = _indented(code) if ast.parse(code).body else "    pass"
    return f"if {condition}:\n{inside}"


def _outside_functions(tree: ast.AST) -> list[ast.AST]:
    inside = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    children = [node for node in ast.iter_child_nodes(tree) if not isinstance(node, inside)]
    return children + [deeper for node in children for deeper in _outside_functions(node)]


def _uses_shell(node: ast.AST) -> bool:
    return any(isinstance(child, ast.Name) and child.id == _SHELL for child in ast.walk(node))


def _without_shell(number: int, node: ast.stmt, text: str) -> tuple[list[str], str]:
    """Return the lines that replace a magic, if any, and the magic as it was typed."""
    match node:
        case ast.Expr(
            ast.Call(
                func=ast.Attribute(ast.Call(func=ast.Name()), attr=("run_line_magic" | "run_cell_magic") as kind),
                args=[ast.Constant(str(name)), ast.Constant(str(line)), *body],
            )
        ):
            more = [part.value for part in body if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            timed = "\n".join(more) if kind == "run_cell_magic" else line
            if name == _TIMER:
                return plain(number, timed).text.splitlines(), ""
            return [], "\n".join([f"{'%%' if more else '%'}{name} {line}".rstrip(), *more])
        case ast.Expr(
            ast.Call(func=ast.Attribute(ast.Call(func=ast.Name()), attr="system"), args=[ast.Constant(str(command))])
        ):
            return [], f"!{command}"
    raise UsageError(
        f"%hvd export: cell [{number}] has a magic or a command inside other code, which a script cannot: "
        f"{text.strip().splitlines()[0]}"
    )


def _indented(code: str) -> str:
    """Indent code, except continuation lines of multi-line strings, which are part of the string."""
    inside: set[int] = set()
    opened: list[int] = []
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        name = tokenize.tok_name[token.type]
        if token.type == tokenize.STRING:
            inside |= {*range(token.start[0] + 1, token.end[0] + 1)}
        elif name == "FSTRING_START":
            opened.append(token.start[0])
        elif name == "FSTRING_END":
            inside |= {*range(opened.pop() + 1, token.end[0] + 1)}
    lines = enumerate(code.splitlines(), start=1)
    return "\n".join(f"    {line}" if line and number not in inside else line for number, line in lines)


_READY = {  # name that every cell has -> the line that defines it
    "rank": "rank = hvd.rank()",
    "size": "size = hvd.size()",
    "local_rank": "local_rank = hvd.local_rank()",
    "device": 'device = registry.adapter("{package}").device(hvd.local_rank(), ())',
}
_IMPORTED = {  # name that IPython defines in every cell -> its import
    "display": "from IPython.display import display",
}


@dataclass(frozen=True)
class Script:
    """The script, and sentences about the parts of cells that were left out."""

    text: str
    notes: list[str]


def script(cells: Sequence[ScriptCell], size: int, name: str, api: str, package: str) -> Script:
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
        The module that cells use as ``hvd``, and its framework.

    Raises
    ------
    UsageError
        Naming the cell that cannot be part of a script, with the reason.
    """
    arguments = _arguments(cells)
    bodies, notes, futures = list[str](), list[str](), set[str]()
    for cell in cells:
        if cell.failed:
            notes.append(f"cell [{cell.number}] failed and is left out")
            continue
        code = plain(cell.number, cell.code)
        futures |= {*code.futures}
        notes += [f"cell [{cell.number}]: {magic.splitlines()[0]} is left out" for magic in code.left_out]
        text = code.text if cell.ranks is None else only_on(cell.ranks, code.text)
        parts = [*_values_of(cell, arguments), text]
        bodies.append("\n".join([f"# %% cell [{cell.number}]", *filter(None, parts)]))
    used = {word for body in bodies for word in re.findall(r"[A-Za-z_]\w*", body)} | (
        {"rank"} if any(cell.ranks is not None or cell.dealt for cell in cells) else set()
    )
    title = f'"""Cells of a notebook, for: hvdrun -np {size} python {name}"""'
    future = [f"from __future__ import {', '.join(sorted(futures))}"] if futures else []
    head = [title, *future, *_head(used, arguments, api, package)]
    return Script("\n\n".join([*head, *bodies]) + "\n", notes)


def _arguments(cells: Sequence[ScriptCell]) -> dict[str, str]:
    """Return the pushed variables, each with its first value."""
    first: dict[str, str] = {}
    for cell in cells:
        for name, text in cell.pushed.items():
            if text is None:
                raise _no_literal(cell, name)
            first.setdefault(name, text)
        for name, text in (item for part in cell.dealt.values() for item in part.items()):
            if text is None:
                raise _no_literal(cell, name)
    return first


def _no_literal(cell: ScriptCell, name: str) -> UsageError:
    return UsageError(
        f"%hvd export: cell [{cell.number}] got `{name}` from the notebook, which a script does not have, and it is no "
        f"number, text, list or dict to write down: make `{name}` in a cell on the ranks"
    )


def _values_of(cell: ScriptCell, arguments: Mapping[str, str]) -> list[str]:
    """Return the lines that define the variables which the notebook sent to a cell."""
    lines = [
        f"{name} = arguments.{name}" if arguments[name] == text else f"{name} = {text}"
        for name, text in cell.pushed.items()
    ]
    names = dict.fromkeys(name for part in cell.dealt.values() for name in part)
    for name in names:
        parts = ", ".join(f"{rank}: {part[name]}" for rank, part in cell.dealt.items())
        lines.append(f"{name} = {{{parts}}}[rank]")
    text = "\n".join(lines)
    return [only_on(cell.ranks, text)] if lines and cell.ranks is not None else lines


def _head(used: set[str], arguments: Mapping[str, str], api: str, package: str) -> list[str]:
    ready = [line.format(package=package) for name, line in _READY.items() if name in used]
    standard = ["import argparse"] * bool(arguments)
    if any(_kind(text) == "ast.literal_eval" for text in arguments.values()):
        standard.append("import ast")
    ours = [line for name, line in _IMPORTED.items() if name in used and not _imports(used, line)]
    ours += [f"import {api} as hvd"]
    ours += ["from hvd_kernel.frameworks import registry"] * ("device" in used)
    parts = ["\n".join(standard), "\n".join(ours)]
    parts.append("\n".join(["hvd.init()", *ready]))
    if arguments:
        rows = [f"parser.add_argument({_argument(name, text)})" for name, text in arguments.items()]
        parts.append("\n".join(["parser = argparse.ArgumentParser()", *rows, "arguments = parser.parse_args()"]))
    return [part for part in parts if part]


def _imports(used: set[str], line: str) -> bool:
    return line.split()[1].partition(".")[0] in used  # cells import it themselves


def _argument(name: str, text: str) -> str:
    kind = _kind(text)
    how = "action=argparse.BooleanOptionalAction" if kind == "bool" else f"type={kind}"
    return f'"--{name.replace("_", "-")}", {how}, default={text}'


def _kind(text: str) -> str:
    value = ast.literal_eval(text)
    return type(value).__name__ if type(value) in {bool, int, float, str} else "ast.literal_eval"
