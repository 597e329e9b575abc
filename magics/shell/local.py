"""``--local``: the cell in the notebook's own namespace, in the way IPython's own %%time runs one."""

from __future__ import annotations

import ast
from typing import Any


def run_here(shell: Any, cell: str, number: int) -> Any:
    """Run a cell in the user's namespace and return its last expression; an exception comes out as it is.

    number: by which its traceback names the cell.
    """
    source = shell.transform_cell(cell)
    tree = shell.compile.ast_parse(source)
    name = shell.compile.cache(source, number)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), shell.user_ns)  # noqa: S102 - the user's own cell, where they asked for it
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), name, "eval"), shell.user_ns)  # noqa: S307 - as above
