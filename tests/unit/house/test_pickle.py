"""Nothing is unpickled before the peer has proved the key: modules that import pickle and modules that read sockets are disjoint.

Rows I6, S4. What happens to a pickle sent to every port is in tests/faults/security/test_ports.py.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hvdtest.offenders import PRODUCT, assert_kept, imports, sources, tree

LOADERS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "_pickle", "joblib"}
WIRES = {"socket", "socketserver", "ssl", "http", "asyncio.streams", "zmq", "xmlrpc", "multiprocessing.connection"}
FILES = sources(*PRODUCT)


def loaders_beside_wires(path: Path) -> Iterator[tuple[int, str]]:
    """Return the lines at which a file that reads from a wire imports pickle or the like."""
    lines: dict[str, int] = {}
    for name, line in imports(path):
        for end in range(1, len(name) + 1):
            lines.setdefault(".".join(name[:end]), line)
    wires = sorted(WIRES & set(lines))
    if wires:
        yield from ((lines[name], f"{name} beside {', '.join(wires)}") for name in sorted(LOADERS & set(lines)))


def code_on_a_wire(path: Path) -> Iterator[tuple[int, str]]:
    """The session's packer is JSON, and numpy's loader may not unpickle."""
    for node in ast.walk(tree(path)):
        if not isinstance(node, ast.keyword):
            continue
        value = node.value.value if isinstance(node.value, ast.Constant) else None
        if node.arg == "allow_pickle" and value is not False:
            yield node.lineno, "allow_pickle is not False"
        if node.arg in {"packer", "unpacker"} and value == "pickle":
            yield node.lineno, f"{node.arg} is pickle"


def test_i6_s4_readers_of_sockets_import_no_pickle() -> None:
    assert_kept("who reads from a socket imports no pickle", FILES, loaders_beside_wires)


def test_s4_no_wire_carries_code() -> None:
    assert_kept("no wire carries code", FILES, code_on_a_wire)


@pytest.mark.parametrize(
    ("broken", "source"),
    [
        (loaders_beside_wires, "import socket\ndef hear():\n    from pickle import loads\n"),
        (loaders_beside_wires, "import multiprocessing.connection\n\nimport cloudpickle as c\n"),
        (code_on_a_wire, "import numpy\n\nnumpy.load(f, allow_pickle=True)\n"),
        (code_on_a_wire, "\n\nSession(packer='pickle')\n"),
    ],
)
def test_i6_rules_detect_violations(
    broken: Callable[[Path], Iterable[tuple[int, str]]], source: str, tmp_path: Path
) -> None:
    (bad := tmp_path / "bad.py").write_text(source)
    with pytest.raises(AssertionError, match=r"bad\.py:3: "):
        assert_kept("a rule", [bad], broken)
