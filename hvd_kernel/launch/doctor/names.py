"""Names that modules called ``horovod.*`` have here, read from our files: to import them takes torch's seconds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import hvd_kernel
from hvd_kernel.compat import finder, names, plumbing

_ROOT = Path(hvd_kernel.__file__).parent


def exists(module: str) -> bool:
    """Tell whether ``import module`` works here; ``module`` begins with horovod."""
    return module in finder.PACKAGES or module in plumbing.PLUMBING or _file(finder.target_of(module)) is not None


def has(module: str, name: str) -> bool:
    """Tell whether a module of Horovod's has a name here, were it one that only raises when it is called."""
    known = _known(finder.target_of(module))
    return name in known or (module, name) in names.OURS or raises(module, name) or exists(f"{module}.{name}")


def raises(module: str, name: str) -> bool:
    """Tell whether the name is there and has no counterpart: a call of it is an error."""
    listed = plumbing.names(module)
    return name in listed or f"{name}!" in listed or name in plumbing.CONSTANTS.get(module, {})


@cache
def _known(target: str) -> frozenset[str]:
    """Return the names of a module of ours, its dunders too."""
    file = _file(target)
    return frozenset(_bound(ast.parse(file.read_text()))) if file is not None else frozenset()


def _bound(tree: ast.Module) -> Iterator[str]:
    yield from ("__name__", "__file__", "__doc__", "__path__", "__spec__", "__all__")
    for node in _outside(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for each in node.names:
                if each.name == "*" and isinstance(node, ast.ImportFrom) and node.module:
                    yield from _known(node.module)
                else:
                    yield (each.asname or each.name).partition(".")[0]


def _outside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is not within a function or a class."""
    for each in ast.iter_child_nodes(node):
        yield each
        if not isinstance(each, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _outside(each)


def _file(target: str) -> Path | None:
    """Return the source of a module of ours."""
    base = _ROOT.joinpath(*target.split(".")[1:])
    return next((path for path in (base / "__init__.py", base.with_name(f"{base.name}.py")) if path.is_file()), None)
