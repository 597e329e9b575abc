"""Nothing is unpickled before the peer has shown the key: who may import pickle, and who reads from sockets, are apart.

Rows I6, S4. What happens to a pickle sent to every port is in test_ports.py.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOADERS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "_pickle", "joblib"}
WIRES = {"socket", "socketserver", "ssl", "http", "asyncio.streams", "zmq", "xmlrpc", "multiprocessing.connection"}
FILES = sorted(
    path
    for room in ("hvd_kernel", "magics", "widgets")
    for path in (ROOT / room).rglob("*.py")
    if not any(parent.is_symlink() for parent in path.parents)
)


def imported(path: Path) -> set[str]:
    """Top names, and dotted ones, that a file imports anywhere."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            found |= {name, name.split(".")[0]}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_i6_s4_who_reads_from_a_socket_imports_no_pickle(path: Path) -> None:
    names = imported(path)
    assert not (names & LOADERS and names & WIRES), f"{path.name}: {names & LOADERS} beside {names & WIRES}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_s4_no_wire_carries_code(path: Path) -> None:
    """The session's packer is JSON, and numpy's loader may not unpickle."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant), path
            assert node.value.value is False, path
        if isinstance(node, ast.keyword) and node.arg in {"packer", "unpacker"}:
            assert not (isinstance(node.value, ast.Constant) and node.value.value == "pickle"), path


def test_i6_the_rule_sees_what_it_forbids(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import socket\ndef hear():\n    from pickle import loads\n")
    assert imported(bad) >= {"socket", "pickle"}
