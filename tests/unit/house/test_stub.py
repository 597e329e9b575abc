"""The stub and the extension name the same things, and their methods take the same arguments."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from hvd_kernel import _native

STUB = ast.parse((Path(__file__).resolve().parents[3] / "hvd_kernel" / "_native.pyi").read_text())
ALIASES = {"Exchange", "In", "InOut"}  # for type checkers only
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def public(names: object) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_the_module_holds_what_the_stub_says() -> None:
    constants = {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)}
    free = {node.name for node in STUB.body if isinstance(node, ast.FunctionDef)}
    assert public(dir(_native)) == set(CLASSES) | free | (public(constants) - ALIASES)


def functions(name: str) -> list[ast.FunctionDef]:
    return [node for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)]


def test_classes_have_the_members_that_the_stub_says() -> None:
    assert {name: public(vars(getattr(_native, name))) for name in CLASSES} == {
        name: public(node.name for node in functions(name)) for name in CLASSES
    }


def taken(method: str) -> list[str]:
    """Arguments of a method of the extension: pybind11 writes the signature into the first line of the docstring."""
    signature = (getattr(_native.Engine, method).__doc__ or "").splitlines()[0]
    return [name for name in re.findall(r"[(,] (\w+): ", signature.replace("(", "( ")) if name != "self"]


def test_methods_take_the_arguments_that_the_stub_says() -> None:
    stubbed = {
        node.name: [arg.arg for arg in node.args.args if arg.arg != "self"]
        for node in functions("Engine")
        if not node.decorator_list
    }
    assert {name: taken(name) for name in stubbed} == stubbed
