"""Python code of a cell as a script can have it: without IPython's own syntax, and for some ranks alone. Pure.

``%time`` and ``%%time`` give way to what they time; other magics, and commands of the system, become comments.
"""

from __future__ import annotations

import ast
import io
import tokenize
from typing import NamedTuple

from IPython.core.inputtransformer2 import TransformerManager

from hvd_kernel.errors import UsageError

_SHELL = "get_ipython"
_TIMER = "time"
_FUTURE = "__future__"


class Code(NamedTuple):
    """The code of one cell."""

    text: str
    left_out: list[str]  # magics and commands, as they were written
    futures: list[str]  # names imported from __future__: those of a script stand at its top


def plain(number: int, code: str) -> Code:
    """Return the code without IPython's own syntax.

    Raises
    ------
    UsageError
        A magic or a command is part of an expression or of a block, or the cell awaits something at its top.
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
    """Return code that does something on these ranks alone."""
    condition = f"rank == {ranks[0]}" if len(ranks) == 1 else f"rank in {ranks}"
    inside = _indented(code) if ast.parse(code).body else "    pass"
    return f"if {condition}:\n{inside}"


def _outside_functions(tree: ast.AST) -> list[ast.AST]:
    inside = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    children = [node for node in ast.iter_child_nodes(tree) if not isinstance(node, inside)]
    return children + [deeper for node in children for deeper in _outside_functions(node)]


def _uses_shell(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Name) and each.id == _SHELL for each in ast.walk(node))


def _without_shell(number: int, node: ast.stmt, text: str) -> tuple[list[str], str]:
    """Return the lines that stand for a magic, or none, and the magic as it was written."""
    match node:
        case ast.Expr(
            ast.Call(
                func=ast.Attribute(ast.Call(func=ast.Name()), attr=("run_line_magic" | "run_cell_magic") as kind),
                args=[ast.Constant(str(name)), ast.Constant(str(line)), *body],
            )
        ):
            more = [each.value for each in body if isinstance(each, ast.Constant) and isinstance(each.value, str)]
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
    """Indent code, but not the further lines of texts over several lines: these are part of the text."""
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
