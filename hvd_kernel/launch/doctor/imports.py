"""Python files of a project: what they import of Horovod, which of its names they use, which variables they touch."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

from hvd_kernel.launch.doctor import names, variables
from hvd_kernel.launch.doctor.finding import Finding, Verdict

_HOROVOD = "horovod"
_WHERE = "in ranks of hvdrun and in cells; elsewhere after `hvdrun --install-horovod`"
_NOT_HERE = {
    "horovod.spark": "start ranks with hvdrun, or hvd_kernel.run(function, np=4)",
    "horovod.ray": "start ranks with hvdrun, or hvd_kernel.run(function, np=4)",
}
_LIGHTNING = {"lightning", "pytorch_lightning"}
_CHOICES = {"strategy", "accelerator", "distributed_backend"}
_SETTERS = {"setdefault", "putenv", "setenv"}
_CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass
class _Seen:
    """What a file has imported: local name -> module of Horovod's; lines on which a failing import is caught."""

    modules: dict[str, str] = field(default_factory=dict)
    caught: set[int] = field(default_factory=set)


def findings(text: str, name: str) -> list[Finding]:
    """Read a Python file; one that is none is a finding."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in its strings
            tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        return _of_nodes(nodes, name)
    except SyntaxError as error:
        said = f"it was not read: {error.msg}"
        return [Finding(name, error.lineno or 1, "Python", Verdict.NOTE, said)] if _HOROVOD in text else []
    except (ValueError, RecursionError, MemoryError):
        return []


def _of_nodes(nodes: list[ast.AST], name: str) -> list[Finding]:
    seen = _Seen(caught={line for node in nodes for line in _caught(node)})
    found = [each for node in nodes for each in _imported(node, name, seen)]
    found += [each for node in nodes for each in _used(node, name, seen)]
    found += _variables(nodes, name)
    return sorted(dict.fromkeys(found), key=lambda each: each.line)


def _caught(node: ast.AST) -> Iterator[int]:
    """Yield the lines of a ``try`` whose failing imports are caught."""
    if not isinstance(node, ast.Try):
        return
    types = [each for handler in node.handlers for each in _types(handler)]
    if _CAUGHT.intersection(types):
        for each in node.body:
            yield from range(each.lineno, (each.end_lineno or each.lineno) + 1)


def _types(handler: ast.ExceptHandler) -> list[str]:
    if handler.type is None:
        return ["BaseException"]
    return [each.id for each in ast.walk(handler.type) if isinstance(each, ast.Name)]


def _imported(node: ast.AST, name: str, seen: _Seen) -> Iterator[Finding]:
    if isinstance(node, ast.Import):
        for each in node.names:
            if _is_horovod(each.name):
                seen.modules[each.asname or _HOROVOD] = each.name if each.asname else _HOROVOD
                yield _module(each.name, name, node.lineno, seen)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level and _is_horovod(node.module):
        yield from _from(node, node.module, name, seen)
    elif isinstance(node, ast.ImportFrom) and "HorovodStrategy" in [each.name for each in node.names]:
        package = (node.module or "").partition(".")[0]
        if package in _LIGHTNING:
            yield _lightning(f"from {node.module} import HorovodStrategy", package, name, node.lineno)


def _is_horovod(module: str) -> bool:
    return module == _HOROVOD or module.startswith(f"{_HOROVOD}.")


def _from(node: ast.ImportFrom, module: str, name: str, seen: _Seen) -> Iterator[Finding]:
    known = names.exists(module)
    own = [] if _excluded(module) else node.names
    below = [each for each in own if _excluded(f"{module}.{each.name}") or names.exists(f"{module}.{each.name}")]
    for each in below:
        seen.modules[each.asname or each.name] = f"{module}.{each.name}"
        yield _module(f"{module}.{each.name}", name, node.lineno, seen)
    rest = [each for each in node.names if each not in below]
    if not rest:
        return
    yield _module(module, name, node.lineno, seen)
    for each in rest:
        if known and each.name != "*":
            yield from _name(module, each.name, name, node.lineno)


def _module(module: str, file: str, line: int, seen: _Seen) -> Finding:
    what = f"import {module}"
    if names.exists(module):
        return Finding(file, line, what, Verdict.RUNS, _WHERE, needs="import")
    said = _excluded(module) or "hvd_kernel has no such module"
    if line in seen.caught:
        return Finding(file, line, what, Verdict.NOTE, f"not here, and the program catches that: {said}")
    return Finding(file, line, what, Verdict.NOT, "not here", said)


def _excluded(module: str) -> str:
    parts = module.split(".")
    return next((said for end in range(2, len(parts) + 1) if (said := _NOT_HERE.get(".".join(parts[:end])))), "")


def _name(module: str, attribute: str, file: str, line: int) -> Iterator[Finding]:
    """Yield what is wrong with a name of one of our modules."""
    what = f"{module}.{attribute}"
    if not names.has(module, attribute):
        yield Finding(file, line, what, Verdict.NOT, f"{module} has no such name here", "leave it out")
    elif names.raises(module, attribute):
        yield Finding(
            file, line, what, Verdict.NOTE, "it can be imported; calling it raises an error that says what to use"
        )


def _used(node: ast.AST, name: str, seen: _Seen) -> Iterator[Finding]:
    """Yield names that are asked of an imported module: ``hvd.allreduce``, ``horovod.torch.allreduce``."""
    if isinstance(node, ast.Attribute):
        module = _module_of(node.value, seen)
        if module and names.exists(module) and not names.exists(f"{module}.{node.attr}"):
            excluded = _excluded(f"{module}.{node.attr}")
            yield from () if excluded else _name(module, node.attr, name, node.lineno)
    elif isinstance(node, ast.keyword) and node.arg in _CHOICES and _is_text(node.value, _HOROVOD):
        yield _lightning(f'{node.arg}="horovod"', "lightning", name, node.value.lineno)


def _is_text(node: ast.expr, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _module_of(node: ast.expr, seen: _Seen) -> str:
    """Return the module that an expression names; empty: none of Horovod's."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in seen.modules:
        return ""
    return ".".join([seen.modules[node.id], *reversed(parts)])


def _lightning(what: str, module: str, file: str, line: int) -> Finding:
    own = f"hvd_kernel.integrations.{module}"
    remedy = f"from {own} import HorovodStrategy; Trainer(strategy=HorovodStrategy())"
    return Finding(file, line, what, Verdict.LINE, "Lightning 2 has no strategy for Horovod of its own", remedy)


def _variables(nodes: list[ast.AST], name: str) -> Iterator[Finding]:
    """Yield on each variable of Horovod's: set by ``environ[...] = "1"`` or in a dict, else read."""
    values = {id(key): value.value for node in nodes for key, value in _pairs(node) if isinstance(value, ast.Constant)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_variable(node.value):
            value = values.get(id(node))
            yield from variables.of(node.value, value if isinstance(value, str) else None, name, node.lineno)


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Dict):
        yield from ((key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None)
    elif isinstance(node, ast.Assign):
        yield from ((target.slice, node.value) for target in node.targets if isinstance(target, ast.Subscript))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SETTERS:
        yield from [(node.args[0], node.args[1])] if len(node.args) == 2 else []  # noqa: PLR2004 - name and value


def _is_variable(text: str) -> bool:
    return text.startswith(variables.PREFIX) and text.isupper() and text.isidentifier()
