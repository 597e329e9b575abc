"""Python files of a project: imports of Horovod, uses of its names, and its variables.

Which names hvd_kernel has is read from its source files: importing them would take seconds for torch.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import hvd_kernel
from hvd_kernel.compat import finder, plumbing
from hvd_kernel.launch.doctor.finding import VARIABLE_PREFIX, Finding, Verdict, variable_findings

_ROOT = Path(hvd_kernel.__file__).parent
_HOROVOD = "horovod"
_WHERE = "in ranks of hvdrun and in cells; elsewhere after `hvdrun --install-horovod`"
_UNSUPPORTED = {
    "horovod.spark": "start ranks with hvdrun, or hvd_kernel.run(function, np=4)",
    "horovod.ray": "start ranks with hvdrun, or hvd_kernel.run(function, np=4)",
}
_LIGHTNING = {"lightning", "pytorch_lightning"}
_CHOICES = {"strategy", "accelerator", "distributed_backend"}
_SETTERS = {"setdefault", "putenv", "setenv"}
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@dataclass
class _Imports:
    """Imports of a file: local name -> module of Horovod's; lines on which a failing import is caught."""

    modules: dict[str, str] = field(default_factory=dict)
    caught: set[int] = field(default_factory=set)


def findings(text: str, name: str) -> list[Finding]:
    """Return the findings in a Python file; that it cannot be parsed is one if it mentions Horovod."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in its strings
            tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        return _of_nodes(nodes, name)
    except SyntaxError as error:
        detail = f"it was not read: {error.msg}"
        return [Finding(name, error.lineno or 1, "Python", Verdict.NOTE, detail)] if _HOROVOD in text else []
    except (ValueError, RecursionError, MemoryError):
        return []


def _of_nodes(nodes: list[ast.AST], file: str) -> list[Finding]:
    imports = _Imports(caught={line for node in nodes for line in _guarded_lines(node)})
    results = [finding for node in nodes for finding in _import_findings(node, file, imports)]
    results += [finding for node in nodes for finding in _use_findings(node, file, imports)]
    results += _variables(nodes, file)
    return sorted(dict.fromkeys(results), key=lambda finding: finding.line)


def _guarded_lines(node: ast.AST) -> Iterator[int]:
    """Yield the lines of a ``try`` whose failing imports are caught."""
    if not isinstance(node, ast.Try):
        return
    types = [name for handler in node.handlers for name in _caught_types(handler)]
    if _IMPORT_ERRORS.intersection(types):
        for statement in node.body:
            yield from range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def _caught_types(handler: ast.ExceptHandler) -> list[str]:
    if handler.type is None:
        return ["BaseException"]
    return [node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)]


def _import_findings(node: ast.AST, file: str, imports: _Imports) -> Iterator[Finding]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if _is_horovod(alias.name):
                imports.modules[alias.asname or _HOROVOD] = alias.name if alias.asname else _HOROVOD
                yield _module_finding(alias.name, file, node.lineno, imports)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level and _is_horovod(node.module):
        yield from _from_findings(node, node.module, file, imports)
    elif isinstance(node, ast.ImportFrom) and "HorovodStrategy" in [alias.name for alias in node.names]:
        package = (node.module or "").partition(".")[0]
        if package in _LIGHTNING:
            yield _lightning_finding(f"from {node.module} import HorovodStrategy", package, file, node.lineno)


def _is_horovod(module: str) -> bool:
    return module == _HOROVOD or module.startswith(f"{_HOROVOD}.")


def _from_findings(node: ast.ImportFrom, module: str, file: str, imports: _Imports) -> Iterator[Finding]:
    candidates = [] if _unsupported(module) else node.names
    submodules = [
        alias
        for alias in candidates
        if _unsupported(f"{module}.{alias.name}") or module_exists(f"{module}.{alias.name}")
    ]
    for alias in submodules:
        imports.modules[alias.asname or alias.name] = f"{module}.{alias.name}"
        yield _module_finding(f"{module}.{alias.name}", file, node.lineno, imports)
    attributes = [alias for alias in node.names if alias not in submodules]
    if not attributes:
        return
    yield _module_finding(module, file, node.lineno, imports)
    if module_exists(module):
        for alias in attributes:
            if alias.name != "*":
                yield from _attribute_findings(module, alias.name, file, node.lineno)


def _module_finding(module: str, file: str, line: int, imports: _Imports) -> Finding:
    subject = f"import {module}"
    if module_exists(module):
        return Finding(file, line, subject, Verdict.RUNS, _WHERE, needs="import")
    remedy = _unsupported(module) or "hvd_kernel has no such module"
    if line in imports.caught:
        return Finding(file, line, subject, Verdict.NOTE, f"not here, and the program catches that: {remedy}")
    return Finding(file, line, subject, Verdict.NOT, "not here", remedy)


def _unsupported(module: str) -> str:
    """Return the replacement of a module of Horovod's that hvd_kernel does not have; empty for other modules."""
    parts = module.split(".")
    prefixes = (".".join(parts[:end]) for end in range(2, len(parts) + 1))
    return next((_UNSUPPORTED[prefix] for prefix in prefixes if prefix in _UNSUPPORTED), "")


def _attribute_findings(module: str, attribute: str, file: str, line: int) -> Iterator[Finding]:
    """Yield the problems of a name in one of our modules."""
    subject = f"{module}.{attribute}"
    if not module_has(module, attribute):
        yield Finding(file, line, subject, Verdict.NOT, f"{module} has no such name here", "leave it out")
    elif _raises(module, attribute):
        detail = "it can be imported; calling it raises an error that says what to use"
        yield Finding(file, line, subject, Verdict.NOTE, detail)


def _use_findings(node: ast.AST, file: str, imports: _Imports) -> Iterator[Finding]:
    """Yield the problems of names of an imported module: ``hvd.allreduce``, ``horovod.torch.allreduce``."""
    if isinstance(node, ast.Attribute):
        module = _module_of(node.value, imports)
        if module and module_exists(module) and not module_exists(f"{module}.{node.attr}"):
            unsupported = _unsupported(f"{module}.{node.attr}")
            yield from () if unsupported else _attribute_findings(module, node.attr, file, node.lineno)
    elif isinstance(node, ast.keyword) and node.arg in _CHOICES and _is_text(node.value, _HOROVOD):
        yield _lightning_finding(f'{node.arg}="horovod"', "lightning", file, node.value.lineno)


def _is_text(node: ast.expr, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _module_of(node: ast.expr, imports: _Imports) -> str:
    """Return the module that an expression names; empty unless it is Horovod's."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in imports.modules:
        return ""
    return ".".join([imports.modules[node.id], *reversed(parts)])


def _lightning_finding(subject: str, package: str, file: str, line: int) -> Finding:
    remedy = f"from hvd_kernel.integrations.{package} import HorovodStrategy; Trainer(strategy=HorovodStrategy())"
    detail = "Lightning 2 has no strategy for Horovod of its own"
    return Finding(file, line, subject, Verdict.LINE, detail, remedy)


def _variables(nodes: list[ast.AST], file: str) -> Iterator[Finding]:
    """Yield the findings on Horovod's variables: set by ``environ[...] = "1"`` or in a dict, else read."""
    values = {id(key): value.value for node in nodes for key, value in _pairs(node) if isinstance(value, ast.Constant)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_variable(node.value):
            value = values.get(id(node))
            yield from variable_findings(node.value, value if isinstance(value, str) else None, file, node.lineno)


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Dict):
        yield from ((key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None)
    elif isinstance(node, ast.Assign):
        yield from ((target.slice, node.value) for target in node.targets if isinstance(target, ast.Subscript))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SETTERS:
        yield from [(node.args[0], node.args[1])] if len(node.args) == 2 else []  # noqa: PLR2004 - name and value


def _is_variable(text: str) -> bool:
    return text.startswith(VARIABLE_PREFIX) and text.isupper() and text.isidentifier()


# Names of modules called ``horovod.*`` in hvd_kernel


def module_exists(module: str) -> bool:
    """Return whether ``import module`` works here; ``module`` begins with horovod."""
    return module in finder.PACKAGES or module in plumbing.PLUMBING or _source_of(finder.target_of(module)) is not None


def module_has(module: str, name: str) -> bool:
    """Return whether a module of Horovod's has a name here, even one that only raises when called."""
    defined = _defined_names(finder.target_of(module))
    return (
        name in defined or (module, name) in finder.OURS or _raises(module, name) or module_exists(f"{module}.{name}")
    )


def _raises(module: str, name: str) -> bool:
    """Return whether the name exists but has no counterpart: calling it raises an error."""
    listed = plumbing.names(module)
    return name in listed or f"{name}!" in listed or name in plumbing.CONSTANTS.get(module, {})


@cache
def _defined_names(target: str) -> frozenset[str]:
    """Return the names of one of our modules, including its dunders."""
    file = _source_of(target)
    return frozenset(_bound_names(ast.parse(file.read_text()))) if file is not None else frozenset()


def _bound_names(tree: ast.Module) -> Iterator[str]:
    yield from ("__name__", "__file__", "__doc__", "__path__", "__spec__", "__all__")
    for node in _module_level(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                if alias.name == "*" and isinstance(node, ast.ImportFrom) and node.module:
                    yield from _defined_names(node.module)
                else:
                    yield (alias.asname or alias.name).partition(".")[0]


def _module_level(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes outside functions and classes."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.Lambda)):
            yield from _module_level(child)


def _source_of(target: str) -> Path | None:
    """Return the source file of one of our modules, or None."""
    base = _ROOT.joinpath(*target.split(".")[1:])
    return next((path for path in (base / "__init__.py", base.with_name(f"{base.name}.py")) if path.is_file()), None)
