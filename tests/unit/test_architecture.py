"""The order of the rooms (design, section 2): two tables, C++ includes and Python imports. Nothing goes back up."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

NATIVE = {  # room -> the rooms it may include, itself aside
    "base": set(),
    "tensor": {"base"},
    "transport": {"base", "tensor"},
    "collective": {"base", "tensor", "transport"},
    "engine": {"base", "tensor", "transport", "collective"},
    "python": {"base", "tensor", "transport", "collective", "engine"},
    "bench": {"base", "tensor", "transport", "collective", "engine"},
    "mpi": {"base", "transport"},
    "cuda": {"base", "tensor", "transport", "collective"},
}
FRAMEWORKS = re.compile(r"^(torch|ATen|c10|tensorflow|xla)/")

SHARED = {"errors", "config", "protocol", "parcel", "gpus"}
CORE = SHARED | {"_native"}
PYTHON = {  # room -> the rooms of hvd_kernel it may import, itself aside
    "errors": set(),
    "protocol": set(),
    "parcel": set(),
    "settings": set(),
    "gpus": {"errors"},
    "config": {"errors", "settings", "gpus"},
    "slurm": set(),
    "routes": set(),
    "uncaught": set(),
    "topology": CORE | {"slurm", "uncaught"},
    "handshake": {"errors", "topology", "routes"},
    "tensor": CORE,
    "metrics": CORE,
    "_session": CORE | {"topology", "handshake", "metrics", "routes"},
    "process_sets": CORE | {"_session"},
    "ops": CORE | {"_session", "tensor", "process_sets"},
    "shared": CORE | {"_session", "tensor", "process_sets", "ops"},
    "elastic": CORE | {"_session", "process_sets", "ops"},
    "torch": CORE | {"_session", "tensor", "process_sets", "ops", "shared", "metrics", "elastic"},
    "bench": CORE | {"_session", "tensor", "process_sets", "ops", "metrics", "torch", "launch"},
    "data": set(),
    "kept": set(),
    "ranklog": set(),
    "compat": CORE | {"_session", "tensor", "process_sets"},
    "worker": CORE
    | {"_session", "tensor", "process_sets", "ops", "shared", "metrics", "torch", "compat", "kept", "ranklog"},
    "cluster": SHARED | {"routes"},
    "launch": SHARED | {"magics", "settings", "cluster", "compat", "routes"},
    "widgets": SHARED,
    "magics": SHARED | {"cluster", "widgets", "compat", "ranklog"},
    "kernel": SHARED | {"magics"},
    "__init__": {"magics", "launch", "kept"},
}
CONTROLLER = {
    "cluster",
    "launch",
    "widgets",
    "magics",
    "kernel",
    "config",
    "settings",
    "protocol",
    "errors",
    "gpus",
    "routes",
    "kept",
    "__init__",
}
ENGINE_ONLY_LIBRARIES = {"torch", "mpi4py"}


def native_files() -> list[Path]:
    return sorted(p for p in (ROOT / "native").rglob("*") if p.suffix in {".h", ".cc", ".cu", ".cuh"})


def python_files() -> list[Path]:
    own = [p for p in (ROOT / "hvd_kernel").rglob("*.py") if not any(q.is_symlink() for q in p.parents)]
    return sorted([*own, *(ROOT / "magics").rglob("*.py"), *(ROOT / "widgets").rglob("*.py")])


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "hvd_kernel" else parts[0]


def imported(path: Path) -> set[tuple[str, ...]]:
    """Absolute dotted names that a file imports anywhere, relative imports resolved."""
    parts = ("hvd_kernel", *path.relative_to(ROOT).with_suffix("").parts)
    package = (parts[1:] if parts[1] == "hvd_kernel" else parts)[:-1]
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module or "").split(".")) if node.module else tuple(base)
            found |= {(*module, alias.name) for alias in node.names}
    return found


@pytest.mark.parametrize("path", native_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_includes_only_point_down(path: Path) -> None:
    here = path.parent.name
    for name in re.findall(r'#include\s+[<"]([^>"]+)[>"]', path.read_text()):
        assert not FRAMEWORKS.match(name), f"{path.name} includes {name}: the core has heard of no framework"
        there = name.split("/")[0]
        if there in NATIVE and "/" in name:
            assert there == here or there in NATIVE[here], f"{here}/{path.name} includes {name}: goes back up"


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_only_point_down(path: Path) -> None:
    here = room(path)
    for name in imported(path):
        if name[0] == "hvd_kernel" and len(name) > 1 and name[1] in PYTHON:
            there = name[1]
            assert there == here or there in PYTHON[here], f"{here} imports {'.'.join(name)}: goes back up"
        if here in CONTROLLER:
            assert name[0] not in ENGINE_ONLY_LIBRARIES, f"{here} imports {name[0]}: that is the engine world's"
            assert name[:2] != ("hvd_kernel", "_native"), f"{here} imports the extension"


def test_every_room_is_in_the_table() -> None:
    assert {room(p) for p in python_files()} <= set(PYTHON), "a new room needs its row in the table"
    assert {p.parent.name for p in native_files()} <= set(NATIVE), "a new room needs its row in the table"


@pytest.mark.parametrize("path", native_files() + python_files(), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_over_500_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500, "split it: a file has one reason to exist"


def test_paths_named_in_the_docs_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    pattern = re.compile(r"`((?:hvd_kernel|native|magics|widgets|notebooks|tests|docs)/[\w./-]+)`")
    for page in pages:
        for name in pattern.findall(page.read_text()):
            assert (ROOT / name).exists(), f"{page.name} names {name}, which is not there"
