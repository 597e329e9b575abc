"""Imports, functions and classes of earlier cells, for ranks that start later.

A rank that has run the cells selects the statements that are still valid: imports whose name still refers to the
imported object, functions and classes whose name still refers to the definition. A new rank runs only these statements,
under the file names of their cells, so that tracebacks and ``inspect.getsource`` show the code.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from hvd_kernel.worker.inspect.origins import RunCell, assigned
from hvd_kernel.worker.inspect.variables import READY

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control

Answer = tuple[dict[str, Any], list[Any]]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

NOT_REPLAYED = "no import, def or class statement of an earlier cell defines it: run its cell on that rank"
_BLOCKS = ("body", "handlers", "orelse", "finalbody")
_AWAITS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_NOTHING = object()


def standing(control: Control) -> dict[str, Any]:
    """Return the valid imports and definitions of earlier cells, and the names of modules, functions and classes."""
    space = dict(control.names)  # a copy, made in one step: a running cell may add names
    cells = control.origins.cells()
    statements: list[dict[str, Any]] = []
    seen: set[str] = set()  # files of later cells: a cell that ran twice counts at its last run
    later: set[str] = set()  # names assigned by later cells
    for cell in reversed(cells):
        if cell.file not in seen:
            lines = [node.lineno for node in _statements(cell.code) if _stands(node, cell, space, later)]
            if lines:
                statements.insert(0, {"cell": cell.number, "code": cell.code, "raw": cell.raw, "lines": lines})
        seen.add(cell.file)
        later |= {name for name, _ in assigned(cell.code)}
    code = [name for name, value in space.items() if _is_code(name, value)]
    return {"cells": statements, "names": code} if statements or code else {}


def define(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> Answer:
    """Run the statements that another rank has selected; ``lost`` maps names still undefined to the reason.

    With ``retry`` only those whose names are still missing: variables have arrived since then.
    """
    retry = content["retry"]
    errors: dict[str, str] = {}
    for cell in content["cells"]:
        file = control.compiler.cache(cell["code"], cell["cell"], raw_code=cell["raw"])
        if not retry:
            control.origins.ran(cell["cell"], cell["code"], cell["raw"], file)
        for node in _statements(cell["code"]):
            if node.lineno not in cell["lines"] or (retry and all(name in control.names for name in _bound(node))):
                continue
            try:
                exec(control.compiler(ast.Module([node], []), file, "exec"), control.names)  # noqa: S102 - the user's cell
            except Exception as error:  # noqa: BLE001 - a decorator or a base class may need a variable that is missing
                errors |= dict.fromkeys(_bound(node), f"{type(error).__name__}: {error}")
    missing = {name for name in (*content["names"], *errors) if name not in control.names}
    return {"lost": {name: errors.get(name, NOT_REPLAYED) for name in sorted(missing)}}, []


def _statements(code: str) -> Iterator[ast.Import | ast.ImportFrom | Definition]:
    """Yield the imports and definitions of a cell, including those inside ``if``, ``try`` and ``with``."""
    try:
        nodes: list[ast.AST] = [compile(code, "<cell>", "exec", _AWAITS, dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.Import | ast.ImportFrom | Definition):
            yield node
        else:
            nodes[:0] = [child for block in _BLOCKS for child in _block(node, block)]


def _block(node: ast.AST, name: str) -> list[ast.AST]:
    block = getattr(node, name, [])
    return block if isinstance(block, list) else []  # the body of a lambda is an expression


def _bound(node: ast.Import | ast.ImportFrom | Definition) -> list[str]:
    """Return the names that a statement binds."""
    if isinstance(node, Definition):
        return [node.name]
    return [alias.asname or alias.name.partition(".")[0] for alias in node.names]


def _is_code(name: str, value: Any) -> bool:
    return not name.startswith("_") and name not in READY and issubclass(type(value), (ModuleType, FunctionType, type))


def _stands(
    node: ast.Import | ast.ImportFrom | Definition, cell: RunCell, space: Mapping[str, Any], later: set[str]
) -> bool:
    """Return whether the names that a statement binds still have its values."""
    if isinstance(node, ast.Import):
        return all(_is_module(alias, space) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return all(_is_member(node.module or "", alias.name, alias.asname, space) for alias in node.names)
    value = space.get(node.name, _NOTHING)
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    lines = range(first, (node.end_lineno or node.lineno) + 1)
    places = [function.__code__ for function in _functions(value)]
    in_cells = [place for place in places if place.co_filename.startswith(cell.folder)]
    if in_cells:
        return any(place.co_filename == cell.file and place.co_firstlineno in lines for place in in_cells)
    again = any(name == node.name and line > node.lineno for name, line in assigned(cell.code))
    return callable(value) and not (again or node.name in later or cell.failed or node.col_offset)


def _is_module(alias: ast.alias, space: Mapping[str, Any]) -> bool:
    path = alias.name if alias.asname else alias.name.partition(".")[0]
    value = space.get(alias.asname or path, _NOTHING)
    return isinstance(value, ModuleType) and value is sys.modules.get(path)


def _is_member(module: str, name: str, asname: str | None, space: Mapping[str, Any]) -> bool:
    if name == "*":
        return module in sys.modules
    member = getattr(sys.modules.get(module), name, _NOTHING)
    return member is not _NOTHING and space.get(asname or name, _NOTHING) is member


def _functions(value: Any) -> list[FunctionType]:
    """Return a function without its wrappers, or the functions of a class."""
    candidates = [*vars(value).values()] if isinstance(value, type) else [value]
    functions = []
    for candidate in candidates:
        with suppress(Exception):  # the object of a user's decorator
            function = inspect.unwrap(getattr(candidate, "__func__", candidate))
            if isinstance(function, FunctionType):
                functions.append(function)
    return functions
