"""Nothing depends on docstrings, which ``python -OO`` removes and 3.13 dedents, nor on ``assert``, which -O removes."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.launch import clean_environment
from hvdtest.offenders import PRODUCT, assert_kept, module, sources, tree

PROGRAMS = (".__main__", ".sitecustomize")
HOROVODS = "hvd_kernel.compat.tree"
"""Files that are imported under Horovod's names."""
IMPORT_ALL = """
import importlib, sys
assert False, "asserts are on"
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:  # of a framework, which this environment lacks
        if (error.name or "").startswith("hvd_kernel"):
            raise
print(sys.flags.optimize, sys.modules["hvd_kernel.numpy"].allreduce.__doc__)
"""


def _is_narrowing(test: ast.expr) -> bool:
    """Tell if an assert narrows a type: ``x is not None`` and ``isinstance(x, ...)`` may be removed at run time."""
    match test:
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Call(func=ast.Name(id="isinstance")):
            return True
    return False


def _checks(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Assert) and not _is_narrowing(node.test):
            yield node.lineno, f"assert {ast.unparse(node.test)}: raise an error"


def _docstring_uses(path: Path) -> Iterator[tuple[int, str]]:
    """Yield expressions that fail if a docstring is None."""
    for node in ast.walk(tree(path)):
        of = node.value if isinstance(node, ast.Attribute | ast.Subscript) else None
        operands = [node.left, node.right] if isinstance(node, ast.BinOp) else [of]
        for operand in operands:
            if (isinstance(operand, ast.Attribute) and operand.attr == "__doc__") or (
                isinstance(operand, ast.Name) and operand.id == "__doc__"
            ):
                yield operand.lineno, ast.unparse(node)


def test_asserts_do_nothing_but_narrow_types() -> None:
    assert_kept("an assert carries logic", sources(*PRODUCT), _checks)


def test_no_expression_needs_a_docstring() -> None:
    assert_kept("a docstring may be None", sources(*PRODUCT, "notebooks"), _docstring_uses)


@pytest.mark.parametrize(
    ("source", "checks", "uses"),
    [
        ("assert x is not None", 0, 0),
        ("assert isinstance(x, int)", 0, 0),
        ("assert x.pop()", 1, 0),
        ("assert (y := x) is None", 1, 0),
        ("a = f.__doc__", 0, 0),
        ("a = f.__doc__ or ''", 0, 0),
        ("a = f.__doc__.split()", 0, 1),
        ("a = __doc__[0]", 0, 1),
        ("a = 'x' + f.__doc__", 0, 1),
    ],
)
def test_rules_detect_violations(tmp_path: Path, source: str, checks: int, uses: int) -> None:
    path = tmp_path / "case.py"
    path.write_text(source)
    assert (len([*_checks(path)]), len([*_docstring_uses(path)])) == (checks, uses)


def test_every_module_imports_without_docstrings() -> None:
    dotted = {".".join(module(path)) for path in sources(*PRODUCT)}
    names = sorted(name for name in dotted if not (name.endswith(PROGRAMS) or name.startswith(HOROVODS)))
    done = subprocess.run(
        [sys.executable, "-P", "-OO", "-c", IMPORT_ALL, *names],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "2 None\n"), done.stderr


def test_options_of_programs_are_listed_without_docstrings() -> None:
    for program in ("hvd_kernel.bench", "hvd_kernel.launch"):
        command = [sys.executable, "-P", "-OO", "-m", program, "--help"]
        done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), program
