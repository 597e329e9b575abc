"""Rules over source files: the files, their imports, and one test that lists all files that break a rule."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("hvd_kernel", "magics", "widgets")
NATIVE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)


def sources(*folders: str, suffixes: Iterable[str] = (".py",)) -> list[Path]:
    """Files of these folders, each once: hvd_kernel/magics and hvd_kernel/widgets are links to the folders beside it."""
    wanted = set(suffixes)
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in wanted]
    return sorted(path for path in found if path.is_file() and not any(p.is_symlink() for p in (path, *path.parents)))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


@cache
def text(path: Path) -> str:
    return path.read_text()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path), str(path))


def module(path: Path) -> tuple[str, ...]:
    """The dotted name of a file of ours, hvd_kernel.magics for magics/__init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts if path.is_relative_to(ROOT) else (path.stem,)
    parts = ("hvd_kernel", *parts) if parts[0] in {"magics", "widgets"} else parts
    return parts[:-1] if parts[-1] == "__init__" else parts


@cache
def imports(path: Path) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Dotted names that a file imports anywhere, relative ones resolved, with their lines; ``from a import b`` is a.b."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[tuple[str, ...], int]]:
    here = module(path)
    package = here if path.name == "__init__.py" else here[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((tuple(alias.name.split(".")), node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base = (*base, *node.module.split(".")) if node.module else base
            yield from (((*base, alias.name), node.lineno) for alias in node.names)


def aliases(path: Path) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return imports under another name with that name: numpy and np for ``import numpy as np``."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = (node.module or "hvd_kernel").split(".") if isinstance(node, ast.ImportFrom) else []
            yield from (((*base, *each.name.split(".")), each.asname) for each in node.names if each.asname)


def includes(path: Path) -> Iterator[tuple[str, int]]:
    """Names that a C++ file includes, with their lines."""
    for match in INCLUDE.finditer(text(path)):
        yield match[1], text(path).count("\n", 0, match.start(1)) + 1


def assert_kept(rule: str, paths: Iterable[Path], broken: Callable[[Path], Iterable[tuple[int, str]]]) -> None:
    """Fail with every file and line at which the rule is broken, and how."""
    checked = list(paths)
    assert checked, f"{rule}: no file was looked at"
    found = [f"{name(path)}:{line}: {what}" for path in checked for line, what in broken(path)]
    assert not found, "\n".join([f"{rule}; {len(found)} break it:", *found])


def circles(edges: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return groups of nodes that each reach all others of the group (Tarjan), without groups of one node."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_nodes: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        open_nodes.append(node)
        for other in sorted(edges[node]):
            if other not in number:
                visit(other)
            if other in open_nodes:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == number[node]:
            place = open_nodes.index(node)
            group = frozenset(open_nodes[place:])
            del open_nodes[place:]
            if len(group) > 1:
                found.add(group)

    for node in sorted(edges):
        if node not in number:
            visit(node)
    return found
