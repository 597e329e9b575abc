"""Layers of the folders, C++ includes and Python imports: only downwards, and never in a circle; sizes of files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import pytest
from hvdtest.offenders import (
    NATIVE_SUFFIXES,
    PRODUCT,
    ROOT,
    aliases,
    assert_kept,
    circles,
    imports,
    includes,
    module,
    sources,
    text,
    tree,
)

from hvd_kernel.jobs import formats, writers

NATIVE = {  # room -> the rooms it may include, itself aside
    "base": set(),
    "tensor": {"base"},
    "transport": {"base", "tensor"},
    "collective": {"base", "tensor", "transport"},
    "engine": {"base", "tensor", "transport", "collective"},
    "c_api": {"base", "tensor", "transport", "collective", "engine"},
    "python": {"base", "tensor", "transport", "collective", "engine", "c_api"},
    "tf": {"base", "c_api"},  # of base what is in headers alone: a plugin is not linked against the core
    "mxnet": {"base", "c_api"},
    "jax": {"base", "c_api"},
    "bench": {"base", "tensor", "transport", "collective", "engine"},
    "mpi": {"base", "transport"},
    "cuda": {"base", "tensor", "transport", "collective"},
}
NATIVE_FOLDERS = {  # room -> its folders, each of which may include those before it; "": the room's own, above them
    "transport": ("socket", "auth", "bootstrap", "link", "shm", "tcp", "mpi", "watch", "mesh", "control", ""),
    "collective": ("backend", "algorithm", ""),
    "engine": ("message", "tune", "eager", "controller", "execution", "timeline", ""),
    "cuda": ("driver", "kernels", "device", "group", "staged", "ring", "nccl", ""),
}
FRAMEWORKS = re.compile(r"^(torch|ATen|c10|tensorflow|xla)/")

SHARED = {"errors", "version", "formatting", "protocol", "settings", "processes"}
CORE = SHARED | {"_native", "core"}
RANK = CORE | {"elastic", "frameworks"}
PYTHON = {  # room -> the rooms of hvd_kernel it may import, itself aside
    "errors": set(),
    "version": set(),
    "protocol": set(),
    "formatting": set(),
    "settings": {"errors"},
    "processes": {"errors", "formatting", "protocol", "settings", "version"},
    "tracking": {"errors", "formatting"},
    "frameworks": {"errors", "protocol", "settings"},
    "core": CORE | {"tracking", "frameworks"},  # torchrun's store is torch's
    "elastic": CORE,
    "numpy": RANK,
    "torch": RANK,
    "mxnet": RANK | {"numpy"},
    "jax": RANK | {"numpy"},
    "tensorflow": RANK | {"keras", "numpy"},
    "keras": RANK | {"numpy", "torch", "tensorflow", "jax"},
    "integrations": {"torch", "frameworks", "formatting", "settings"},
    "data": set(),
    "compat": CORE | {"tracking", "frameworks"},
    "worker": CORE | {"torch", "compat", "tracking", "frameworks", "elastic"},
    "jobs": {"errors", "formatting", "processes", "settings"},
    "diagnosis": SHARED | {"frameworks"},
    "launch": SHARED | {"jobs", "diagnosis", "tracking", "compat", "frameworks"},
    "ray": SHARED | {"launch", "compat", "diagnosis", "frameworks"},
    "spark": SHARED | {"launch", "diagnosis"},
    "spark.common": SHARED | {"launch", "spark", "data", "tracking"},
    "spark.torch": RANK | {"spark", "spark.common", "torch"},
    "spark.keras": RANK | {"spark", "spark.common", "keras"},
    "spark.lightning": RANK | {"spark", "spark.common", "spark.torch", "torch", "integrations"},
    "bench": CORE | {"torch", "launch"},
    "cluster": SHARED | {"diagnosis"},
    "widgets": SHARED | {"diagnosis"},
    "magics": SHARED
    | {"jobs", "diagnosis", "cluster", "widgets", "compat", "tracking", "frameworks", "launch", "ray", "spark"},
    "kernel": SHARED | {"magics"},
    "__init__": {"magics", "launch", "protocol", "version"},
}
ESTIMATORS = {
    "spark.torch",
    "spark.keras",
    "spark.lightning",
}  # rooms within a room: the driver and the ranks have them
CONTROLLER = {
    "cluster",
    "launch",
    "ray",
    "spark",
    "spark.common",
    "widgets",
    "magics",
    "kernel",
    "settings",
    "protocol",
    "formatting",
    "errors",
    "jobs",
    "processes",
    "diagnosis",
    "tracking",
    "__init__",
}
ENGINE_ONLY_LIBRARIES = {"torch", "mpi4py", "tensorflow", "keras", "jax", "mxnet"}
AT_HOME = {  # a framework -> the rooms that import it; all others reach it through its adapter
    "torch": {"torch", "integrations", "bench", "spark.torch", "spark.lightning"},
    "tensorflow": {"tensorflow", "keras"},
    "keras": {"keras", "tensorflow", "spark.keras"},
    "jax": {"jax", "keras"},
    "mxnet": {"mxnet"},
    "ray": {"ray"},
    "pyspark": {"spark", "spark.common", *ESTIMATORS},
}

HOROVODS = {"_allreduce", "_grouped_allreduce", "_reducescatter", "_grouped_reducescatter"}  # so in Horovod, too

PLATFORMS = {  # names by which nothing of launch/ knows one; hostfile, mpirun's and horovodrun's lines are of no platform
    *({reader.kind for reader in formats.READERS} | {*writers.WRITERS}) - {"job", "hostfile", "mpirun", "horovodrun"},
    *("kubernetes", "paperspace", "pbs", "polyaxon"),
}
PLATFORM = re.compile(rf"(?<![a-z])(?:{'|'.join(sorted(PLATFORMS))})(?![a-z])", re.IGNORECASE)

PRIVATE = re.compile("_(?!_)")
NAMED_TUPLES = {"_replace", "_asdict", "_fields"}

MAX_LINES = 1000

PYTHON_FILES = sources(*PRODUCT)
NATIVE_FILES = sources("native", suffixes=NATIVE_SUFFIXES)


@cache
def room(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return room_of(parts) if parts[0] == "hvd_kernel" else parts[0]


def room_of(names: Sequence[str]) -> str:
    """The room of a module of hvd_kernel; a folder of a room that has a row of its own is one."""
    within = ".".join(names[1:3])
    return within if within in PYTHON else names[1]


def native_place(file: str) -> tuple[str, str]:
    """Return room and folder of a file of native/: transport and shm of transport/shm/fast_path.h; "" without a folder."""
    room, *folders = file.split("/")[:-1] or [""]
    return room, "/".join(folders)


def upward_includes(path: Path) -> Iterator[tuple[int, str]]:
    here, folder = native_place(str(path.relative_to(ROOT / "native")))
    for included, line in includes(path):
        there, below = native_place(included)
        if FRAMEWORKS.match(included):
            yield line, f"includes {included}: the core has heard of no framework"
        elif "/" in included and there in NATIVE and there != here and there not in NATIVE[here]:
            yield line, f"{here} includes {included}, which is not below it"
        elif there == here and there in NATIVE_FOLDERS:
            order = NATIVE_FOLDERS[here]
            if order.index(below) > order.index(folder):
                yield line, f"{here}/{folder} includes {included}, which is not below it"


def upward_imports(path: Path) -> Iterator[tuple[int, str]]:
    here = room(path)
    for target, line in imports(path):
        dotted = ".".join(target)
        if target[0] == "hvd_kernel" and len(target) > 1 and target[1] in PYTHON:
            there = room_of(target)
            if there != here and there not in PYTHON[here]:
                yield line, f"{here} imports {dotted}, which is not below it"
        if here in CONTROLLER and target[0] in ENGINE_ONLY_LIBRARIES:
            yield line, f"{here} imports {dotted}: that is the rank side's"
        if target[0] in AT_HOME and here not in AT_HOME[target[0]]:
            yield line, f"{here} imports {dotted}: a framework is reached through its adapter"
        if here in CONTROLLER and target[:2] == ("hvd_kernel", "_native"):
            yield line, f"{here} imports the extension"


def private_imports(path: Path) -> Iterator[tuple[int, str]]:
    for target, line in imports(path):
        if target[0] == "hvd_kernel" and PRIVATE.match(target[-1]) and target[-1] not in {"_native", *HOROVODS}:
            yield line, f"imports {'.'.join(target)}: a private name is its own file's; say it without the underscore"


@cache
def private_names(path: Path) -> frozenset[str]:
    """Private names that a file gives to anything of its own: functions, classes, variables, attributes of ``self``."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            found.add(node.attr)
    return frozenset(each for each in found if PRIVATE.match(each))


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def private_uses(path: Path, files: Sequence[Path]) -> Iterator[tuple[int, str]]:
    """Uses of another file's private names: of a module's of ours, or of an object's that a file of this room made.

    What is reached through somebody else's module is somebody else's, as are the names of every named tuple.
    """
    nodes = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Attribute)]
    private = [node for node in nodes if PRIVATE.match(node.attr) and not is_own(node)]
    if not private:
        return
    named = [(target, target[0]) for target, _ in imports(path)]
    named += [(target, target[-1]) for target, _ in imports(path)]
    modules = {known_as: target[0] == "hvd_kernel" for target, known_as in [*named, *aliases(path)]}
    nearby = [other for other in files if other != path and room(other) == room(path)]
    theirs = frozenset().union(*map(private_names, nearby)) - private_names(path) - NAMED_TUPLES
    for node in private:
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        ours = modules.get(root.id) if isinstance(root, ast.Name) else None
        is_module = ours and isinstance(node.value, ast.Name) and node.attr not in HOROVODS
        if is_module or (ours is None and node.attr in theirs):
            yield node.lineno, f"{ast.unparse(node)}: a private name is its own file's; say it without the underscore"


def platform_names(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text(path).splitlines(), 1):
        for found in PLATFORM.findall(line):
            yield (
                number,
                f"{found}: a platform is known by name to jobs/, and to those who start ranks or find hosts there",
            )


def import_edges(files: list[Path]) -> dict[str, set[str]]:
    """File -> files that it imports anywhere: an import that is delayed, or for annotations, closes a circle too."""
    names = {module(path): ".".join(module(path)[1:]) or "__init__" for path in files}
    edges: dict[str, set[str]] = {each: set() for each in names.values()}
    for path in files:
        for target, _ in imports(path):
            found = names.get(target) or names.get(target[:-1])
            if found and found != names[module(path)]:
                edges[names[module(path)]].add(found)
    return edges


def include_edges(files: list[Path]) -> dict[str, set[str]]:
    names = {str(path.relative_to(ROOT / "native")): path for path in files}
    return {each: {included for included, _ in includes(path)} & set(names) for each, path in names.items()}


def test_includes_only_point_down() -> None:
    assert_kept("includes point down", NATIVE_FILES, upward_includes)


def test_imports_only_point_down() -> None:
    assert_kept("imports point down", PYTHON_FILES, upward_imports)


def test_no_file_imports_a_private_name_of_another() -> None:
    assert_kept("private names stay in their file", PYTHON_FILES, private_imports)


def test_no_file_uses_a_private_name_of_another() -> None:
    assert_kept("private names stay in their file", PYTHON_FILES, partial(private_uses, files=PYTHON_FILES))


def test_private_attribute_of_another_file_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setattr("hvdtest.offenders.ROOT", tmp_path)
    made, user = tmp_path / "widgets" / "made.py", tmp_path / "widgets" / "user.py"
    made.parent.mkdir()
    made.write_text("class Made:\n    def __init__(self):\n        self._held = self._other = 1\n")
    user.write_text(
        "import os\nimport torch as pt\nfrom hvd_kernel.widgets import made\nfrom hvd_kernel.core import ops as of\n"
        "class User:\n    def f(self, it):\n        self._own = it._replace, it._held, os._held, pt.x._held, it.held\n"
        "        return self._other, it._own, made._x, of._y, it._elsewhere\n"
    )
    found = [(line, what.partition(":")[0]) for line, what in private_uses(user, [made, user])]
    assert sorted(found) == [(7, "it._held"), (8, "made._x"), (8, "of._y")]


def test_launch_knows_no_platform_by_name() -> None:
    places = [ROOT / "hvd_kernel" / "launch" / each for each in ("launchers", "elastic/schedulers.py")]
    files = [path for path in sources("hvd_kernel/launch") if not set(places) & {path, *path.parents}]
    assert_kept("launch knows no platform", files, platform_names)


def test_every_room_is_in_the_table() -> None:
    assert {room(p) for p in PYTHON_FILES} <= set(PYTHON), "a new room needs its row in the table"
    places = {native_place(str(p.relative_to(ROOT / "native"))) for p in NATIVE_FILES}
    assert {room for room, _ in places} <= set(NATIVE), "a new room needs its row in the table"
    in_table = {(room, folder) for room, folders in NATIVE_FOLDERS.items() for folder in folders}
    assert {each for each in places if each[1] or each[0] in NATIVE_FOLDERS} == in_table, "folders of NATIVE_FOLDERS"


def test_no_python_files_import_each_other_in_a_circle() -> None:
    assert not circles(import_edges(PYTHON_FILES))


def test_no_headers_include_each_other_in_a_circle() -> None:
    assert not circles(include_edges(NATIVE_FILES))


def test_circle_is_detected() -> None:
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(edges) == {frozenset("bc"), frozenset("de")}


def test_no_file_over_1000_lines() -> None:
    files = sources(*PRODUCT, "native", "tests", "tools", suffixes={".py", ".js", ".sh", *NATIVE_SUFFIXES})
    ours = [path for path in files if "static" not in path.parts]

    def too_long(path: Path) -> Iterator[tuple[int, str]]:
        lines = len(text(path).splitlines())
        if lines > MAX_LINES:
            yield lines, "split it: a file has one reason to exist"

    assert_kept(f"no file has more than {MAX_LINES} lines", ours, too_long)


@pytest.mark.parametrize(
    ("broken", "file", "source", "line"),
    [
        (upward_includes, "native/base/bad.h", '#pragma once\n#include "engine/engine.h"\n', 2),
        (upward_includes, "native/engine/message/bad.h", '#include "engine/tune/autotune.h"\n', 1),
        (upward_includes, "native/engine/bad.cc", "#include <torch/torch.h>\n", 1),
        (upward_imports, "magics/bad.py", "def f():\n    from hvd_kernel.worker import life\n", 2),
        (upward_imports, "hvd_kernel/cluster/bad.py", "import os\nimport torch.nn\n", 2),
        (upward_imports, "widgets/bad.py", "from hvd_kernel import _native\n", 1),
        (platform_names, "hvd_kernel/launch/bad.py", '"""Runs."""\n\nHELP = "hosts of an LSF job"\n', 3),
        (platform_names, "hvd_kernel/launch/bad.py", '"""A line of gradient\'s."""\n', 1),
        (platform_names, "hvd_kernel/launch/bad.py", "gradients = _job\n_sbatch = 'a.slurm'\n", 2),
        (private_imports, "widgets/bad.py", "import os\nfrom hvd_kernel.widgets.board import _shown\n", 2),
    ],
)
def test_rules_detect_violations(
    *, broken, file: str, source: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdtest.offenders.ROOT", tmp_path)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    with pytest.raises(AssertionError, match=f"{file}:{line}: "):
        assert_kept("a rule", [path], broken)
