"""The stub and the extension define the same names, and their methods accept the same arguments."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

from hvdtest.built_core import newer_source

from hvd_kernel import _native

STUB = ast.parse((Path(__file__).resolve().parents[3] / "hvd_kernel" / "_native.pyi").read_text())
ALIASES = {"Exchange", "In", "InOut"}  # for type checkers only
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}


def public(names: object) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_module_has_the_names_of_the_stub() -> None:
    constants = {node.target.id for node in STUB.body if isinstance(node, ast.AnnAssign)}
    free = {node.name for node in STUB.body if isinstance(node, ast.FunctionDef)}
    assert public(dir(_native)) == set(CLASSES) | free | (public(constants) - ALIASES)


def functions(name: str) -> list[ast.FunctionDef]:
    return [node for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)]


def test_classes_have_the_members_of_the_stub() -> None:
    assert {name: public(vars(getattr(_native, name))) for name in CLASSES} == {
        name: public(node.name for node in functions(name)) for name in CLASSES
    }


def taken(method: str) -> list[str]:
    """Arguments of a method of the extension: pybind11 writes the signature into the first line of the docstring."""
    signature = (getattr(_native.Engine, method).__doc__ or "").splitlines()[0]
    return [name for name in re.findall(r"[(,] (\w+): ", signature.replace("(", "( ")) if name != "self"]


def test_methods_have_the_signatures_of_the_stub() -> None:
    stubbed = {
        node.name: [arg.arg for arg in node.args.args if arg.arg != "self"]
        for node in functions("Engine")
        if not node.decorator_list
    }
    assert {name: taken(name) for name in stubbed} == stubbed


# Installed core against its sources (tests/hvdtest/built_core.py).


def _file(folder: Path, name: str, at: int) -> Path:
    path = folder / name
    path.touch()
    os.utime(path, (at, at))
    return path


def test_a_source_newer_than_every_library_is_named(tmp_path: Path) -> None:
    libraries = [_file(tmp_path, "core.so", 20), _file(tmp_path, "tf.so", 10)]
    old, new = _file(tmp_path, "ring.cc", 15), _file(tmp_path, "engine.cc", 21)
    assert newer_source([old, new], libraries) == new
    assert newer_source([old], libraries) is None, "what is rebuilt is only what changed: the newest library counts"


def test_nothing_is_compared_without_library_or_sources(tmp_path: Path) -> None:
    assert newer_source([_file(tmp_path, "ring.cc", 15)], []) is None
    assert newer_source([], [_file(tmp_path, "core.so", 20)]) is None
