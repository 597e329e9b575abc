"""The stub and the extension name the same things, and their methods take the same arguments."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from hvd_kernel import _native

STUB = ast.parse((Path(__file__).resolve().parents[2] / "hvd_kernel" / "_native.pyi").read_text())
ALIASES = {"Exchange", "In", "InOut"}  # for type checkers only
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def public(names: object) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_the_module_holds_what_the_stub_says() -> None:
    constants = {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)}
    assert public(dir(_native)) == set(CLASSES) | (public(constants) - ALIASES)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_class_has_the_members_that_the_stub_says(name: str) -> None:
    stubbed = {node.name for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)}
    assert public(vars(getattr(_native, name))) == public(stubbed)


@pytest.mark.parametrize(
    "method",
    [node for node in CLASSES["Engine"].body if isinstance(node, ast.FunctionDef) and not node.decorator_list],
    ids=lambda node: node.name,
)
def test_a_method_takes_the_arguments_that_the_stub_says(method: ast.FunctionDef) -> None:
    """pybind11 writes the signature into the first line of the docstring."""
    signature = (getattr(_native.Engine, method.name).__doc__ or "").splitlines()[0]
    taken = re.findall(r"[(,] (\w+): ", signature.replace("(", "( "))
    assert [name for name in taken if name != "self"] == [arg.arg for arg in method.args.args if arg.arg != "self"]
