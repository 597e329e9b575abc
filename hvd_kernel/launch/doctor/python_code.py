"""Python files of a project: imports of Horovod, uses of its names, and its variables.

Which names hvd_kernel has is read from its source files: importing them would take seconds for torch.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import hvd_kernel
from hvd_kernel.compat import finder, plumbing
from hvd_kernel.launch.doctor import framework_rules
from hvd_kernel.launch.doctor.finding import VARIABLE_PREFIX, Finding, Verdict, short, variable_findings

_ROOT = Path(hvd_kernel.__file__).parent
_HOROVOD = "horovod"
_WHERE = "in ranks of hvdrun and in cells; elsewhere after `hvdrun --install-horovod`"
NOT_READ = "it was not read: {reason}"
NOT_TEXT = "exclude it (a line in .hvdrun-doctor-ignore) if it is of no use to the ranks"
NOT_PYTHON = "make it Python 3, or exclude it (a line in .hvdrun-doctor-ignore)"
UNKNOWN_MODULE = "the module's name is known only when it runs"
"""Details and remedies of findings on what could not be read."""
_IMPORTERS = {"import_module", "__import__", "importorskip"}
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
    """Return the findings in a Python file; that it cannot be parsed is one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in its strings
            tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        return _of_nodes(nodes, name)
    except SyntaxError as error:
        lines = max(1, len(text.splitlines()))
        return [_unparsed(text, name, min(error.lineno or 1, lines), error.msg)]
    except (ValueError, RecursionError, MemoryError) as error:
        return [_unparsed(text, name, 1, str(error) or type(error).__name__)]


def scripts_with_horovod(texts: Mapping[str, str]) -> dict[str, bool]:
    """Return the file names of Python files, each with whether it uses Horovod, itself or by modules of the project.

    A file that cannot be parsed counts as one that does.
    """
    modules = {name: name.rpartition("/")[2] for name in texts}
    imported = {name: _imported_names(text) for name, text in texts.items()}
    users = {modules[name] for name, names in imported.items() if names is None or _HOROVOD in names}
    while True:
        more = {modules[name] for name, names in imported.items() if {f"{part}.py" for part in names or ()} & users}
        if more <= users:
            return {base: base in users for base in modules.values()}
        users |= more


def _imported_names(text: str) -> set[str] | None:
    """Return the parts of the names of imported modules; None if the file cannot be parsed, or imports by name."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(part for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            names.update([*(node.module or "").split("."), *(alias.name for alias in node.names)])
        elif isinstance(node, ast.Call) and _HOROVOD in ast.unparse(node):
            names.add(_HOROVOD)
    return names


def _unparsed(text: str, name: str, line: int, reason: str) -> Finding:
    """Return the finding on a file that is not Python 3; one without Horovod counts in a project that uses it."""
    return Finding(name, line, "Python", Verdict.UNSURE, NOT_READ.format(reason=reason), NOT_PYTHON, needs_of(text))


def needs_of(text: str) -> str:
    """Return ``Finding.needs`` of a text that cannot be read: one without Horovod counts in a project that uses it."""
    return "" if _HOROVOD in text else framework_rules.NEEDS_PROJECT


def _of_nodes(nodes: list[ast.AST], file: str) -> list[Finding]:
    imports = _Imports(caught={line for node in nodes for line in _guarded_lines(node)})
    results = [finding for node in nodes for finding in _import_findings(node, file, imports)]
    results += [finding for node in nodes for finding in _dynamic_findings(node, file, imports)]
    results += [finding for node in nodes for finding in _use_findings(node, file, imports)]
    results += framework_rules.findings(nodes, file)
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


def _imported_module(node: ast.Call) -> str:
    """Return the module of Horovod's that ``import_module("horovod.torch")`` imports; empty for other calls."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    first = node.args[0] if node.args else None
    is_literal = isinstance(first, ast.Constant) and isinstance(first.value, str) and _is_horovod(first.value)
    return str(first.value) if name in _IMPORTERS and is_literal and isinstance(first, ast.Constant) else ""


def _dynamic_findings(node: ast.AST, file: str, imports: _Imports) -> Iterator[Finding]:
    """Yield the findings on a call that imports a module by its name."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _imported_module(node.value):
        names = (target.id for target in node.targets if isinstance(target, ast.Name))
        imports.modules |= dict.fromkeys(names, _imported_module(node.value))
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if module := _imported_module(node):
        yield _module_finding(module, file, node.lineno, imports)
    elif name in _IMPORTERS and node.args and not isinstance(node.args[0], ast.Constant):
        text = ast.unparse(node.args[0])
        if _HOROVOD in text:
            subject = short(f"{name}({text})")
            yield Finding(file, node.lineno, subject, Verdict.UNSURE, UNKNOWN_MODULE, "import it by a literal name")


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
