"""Prefetch of imports: it pauses during a cell, and no code sees or waits for a half-imported module."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hvd_kernel.worker.import_prefetch import ImportPrefetch, _waits_for_import
from hvd_kernel.worker.standby import without_collection

PATIENCE_S = 60.0


class Package:
    """``first`` waits for the test while it is imported; ``second`` is imported after it, and records that."""

    def __init__(self, folder: Path) -> None:
        self.name = f"prefetch_{uuid.uuid4().hex}"
        self.begun, self.goes_on, self.second = threading.Event(), threading.Event(), threading.Event()
        self.run: list[str] = []  # modules, each time that its code runs
        (folder / self.name).mkdir()
        me = f"import builtins; me = builtins.{self.name}\n"
        first = f"{me}me.begun.set(); me.goes_on.wait({PATIENCE_S})\n"
        for module, code in {"__init__": "from . import first, second\nwhole = True\n", "first": first}.items():
            (folder / self.name / f"{module}.py").write_text(code)
        (folder / self.name / "second.py").write_text(f"{me}me.second.set()\n")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    package, before = Package(tmp_path), threading.enumerate()
    monkeypatch.setattr(f"builtins.{package.name}", package, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    importlib.invalidate_caches()
    yield package
    package.goes_on.set()
    for thread in [each for each in threading.enumerate() if each not in before]:
        thread.join(PATIENCE_S)  # it still imports what is forgotten here
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]


def begun(package: Package, rest_s: float = 0.0) -> ImportPrefetch:
    prefetch = ImportPrefetch({package.name: rest_s})
    prefetch.begin()
    return prefetch


def stands_still(prefetch: ImportPrefetch) -> bool:
    frame = sys._current_frames().get(prefetch._thread.ident or 0)
    while frame is not None and frame.f_code.co_name != "_pause_in_cell":
        frame = frame.f_back
    return frame is not None


def until(condition: object) -> None:
    tick = threading.Event()
    for _ in range(int(PATIENCE_S * 100)):
        if condition():  # type: ignore[operator]
            return
        tick.wait(0.01)
    raise AssertionError("not in time")


@contextmanager
def paused_in_cell(package: Package) -> Iterator[ImportPrefetch]:
    """Run a cell while the thread is in the middle of importing a package."""
    prefetch = begun(package)
    assert package.begun.wait(PATIENCE_S)
    with prefetch.during_cell():
        package.goes_on.set()
        until(lambda: stands_still(prefetch))
        yield prefetch


def test_prefetch_pauses_while_a_cell_runs(package: Package) -> None:
    with paused_in_cell(package) as prefetch:
        assert not package.second.is_set()
    prefetch._thread.join(PATIENCE_S)
    assert sys.modules[package.name].whole


def test_cell_gets_a_half_imported_module_complete(package: Package) -> None:
    with paused_in_cell(package):
        assert importlib.import_module(package.name).whole


def test_cell_waits_for_a_package_being_imported(package: Package) -> None:
    with paused_in_cell(package):
        importlib.import_module(f"{package.name}.second")
        assert sys.modules[package.name].whole


def test_cell_importing_another_module_does_not_wait(package: Package, tmp_path: Path) -> None:
    (tmp_path / f"another_{package.name}.py").write_text("there = True\n")
    prefetch = begun(package)
    assert package.begun.wait(PATIENCE_S)
    with prefetch.during_cell():
        assert importlib.import_module(f"another_{package.name}").there
        assert not package.second.is_set()


def test_forked_child_finds_the_module_complete(package: Package) -> None:
    with paused_in_cell(package):
        child = os.fork()
        if child == 0:
            os._exit(0 if importlib.import_module(package.name).whole else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_prefetch_begins_after_a_pause_without_cells(package: Package) -> None:
    """The rest is counted from the end of the last cell: one that runs for longer than it is no rest."""
    prefetch = ImportPrefetch({package.name: 0.05})
    with prefetch.during_cell():
        prefetch.begin()
        assert not package.begun.wait(0.2)
    assert package.begun.wait(PATIENCE_S)


def test_failed_imports_are_left_to_the_cell(tmp_path: Path, package: Package) -> None:
    (tmp_path / package.name / "__init__.py").write_text("raise RuntimeError('broken')\n")
    begun(package)._thread.join(PATIENCE_S)
    with pytest.raises(RuntimeError, match="broken"):
        importlib.import_module(package.name)


def test_prefetched_modules_are_unchanged(package: Package) -> None:
    package.goes_on.set()
    begun(package)._thread.join(PATIENCE_S)
    module = sys.modules[f"{package.name}.second"]
    loaders = {type(loader).__name__ for loader in (module.__loader__, module.__spec__.loader)}
    assert loaders == {"SourceFileLoader"}


class Noting:
    """A lock that records the threads about to wait for it."""

    def __init__(self) -> None:
        self._lock, self.waited = threading.Lock(), []
        self.locked, self.release = self._lock.locked, self._lock.release

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            self.waited.append(threading.current_thread().name)
        return self._lock.acquire(blocking, timeout)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_first_importer_finishes_without_delay(package: Package) -> None:
    """A request that imported torch just before the thread started needed 20 ms for each of torch's thousand modules."""
    importer = threading.Thread(target=importlib.import_module, args=(package.name,), name="importer")
    importer.start()
    assert package.begun.wait(PATIENCE_S)
    prefetch = ImportPrefetch({package.name: 0.0})
    prefetch._importing = lock = Noting()  # type: ignore[assignment]
    prefetch.begin()
    until(lambda: lock.waited.count("hvd-import") > 1)
    assert not _waits_for_import(prefetch._thread.ident)
    package.goes_on.set()
    importer.join(PATIENCE_S)
    assert package.second.is_set()
    prefetch._thread.join(PATIENCE_S)
    assert lock.waited.count("importer") <= 1  # where the thread looked just then


@pytest.fixture
def companion(package: Package, tmp_path: Path) -> Iterator[str]:
    """A package that imports the other one, which imports it when it continues: as Keras and TensorFlow do."""
    name = f"companion_of_{package.name}"
    (tmp_path / name).mkdir()
    for module, code in {"__init__": "from . import part\n", "part": f"import {package.name}\nruns = True\n"}.items():
        (tmp_path / name / f"{module}.py").write_text(
            f"import builtins; builtins.{package.name}.run.append(__name__)\n{code}"
        )
    (tmp_path / package.name / "second.py").write_text(f"import {name}.part\n")
    yield name
    for each in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[each]


def waits_in(thread: threading.Thread, function: str) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


@pytest.mark.parametrize("module", ["", ".part"])
def test_circular_packages_are_complete_after_both_threads(package: Package, companion: str, module: str) -> None:
    """A cell imported Keras while the thread imported TensorFlow: both imports failed, and each later one."""
    prefetch = ImportPrefetch({package.name: 0.0}, [companion])
    prefetch.begin()
    assert package.begun.wait(PATIENCE_S)
    found: list[object] = []
    cell = threading.Thread(target=lambda: found.append(importlib.import_module(f"{companion}{module}")))
    cell.start()
    until(lambda: waits_in(cell, "_wait_for_thread"))
    package.goes_on.set()
    prefetch._thread.join(PATIENCE_S)
    cell.join(PATIENCE_S)
    assert found == [sys.modules[f"{companion}{module}"]]
    assert sys.modules[package.name].whole
    assert package.run == [companion, f"{companion}.part"]


def test_first_companion_imports_both_packages(package: Package, companion: str) -> None:
    prefetch = ImportPrefetch({package.name: 0.0}, [companion])
    prefetch._importing = lock = Noting()  # type: ignore[assignment]
    cell = threading.Thread(target=importlib.import_module, args=(companion,))
    cell.start()
    assert package.begun.wait(PATIENCE_S)
    prefetch.begin()
    until(lambda: lock.waited.count("hvd-import") > 1)
    package.goes_on.set()
    cell.join(PATIENCE_S)
    prefetch._thread.join(PATIENCE_S)
    assert sys.modules[package.name].whole
    assert package.run == [companion, f"{companion}.part"]


def test_free_import_lock_is_acquired_without_waiting() -> None:
    lock = importlib._bootstrap._ModuleLock("free")  # type: ignore[attr-defined]
    thread = threading.Thread(target=lock.acquire)

    def at_it() -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        return frame is not None and frame.f_locals.get("self") is lock

    with lock.lock:  # as while another thread looks at it
        thread.start()
        until(at_it)
        free = _waits_for_import(thread.ident)
        lock.owner, lock.count = threading.get_ident(), 1
        held = _waits_for_import(thread.ident)
        lock.owner, lock.count = None, 0
    thread.join()
    assert (free, held) == (False, True)


def test_i10_only_cells_import_from_the_notebooks_folder(
    package: Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch.py in that folder was run by every rank that had nothing to do."""
    planted = f"planted_{uuid.uuid4().hex}"
    (notebook := tmp_path / "notebook").mkdir()
    (notebook / f"{planted}.py").write_text(f"import builtins; builtins.{package.name}.run.append('planted')\n")
    (notebook / f"{package.name}.py").write_text(f"import builtins; builtins.{package.name}.run.append('instead')\n")
    optional = f"try:\n    import {planted}\nexcept ImportError as error:\n    why = str(error)\n"
    optional += (
        "import importlib.util\nthere = importlib.util.find_spec('nobody_has_this')\n"  # as JAX looks for web_pdb
    )
    (tmp_path / package.name / "first.py").write_text(optional)
    monkeypatch.chdir(notebook)
    monkeypatch.syspath_prepend("")
    prefetch = begun(package)
    assert package.second.wait(PATIENCE_S)
    prefetch._thread.join(PATIENCE_S)
    assert sys.modules[f"{package.name}.first"].why == f"No module named {planted!r}"
    assert sys.modules[f"{package.name}.first"].there is None
    assert package.run == []
    importlib.import_module(planted)
    assert package.run == ["planted"]
    del sys.modules[planted]


# How a rank imports: the garbage collector rests meanwhile, and works again afterwards, whatever the import does.


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_garbage_collection_is_off_while_a_rank_imports() -> None:
    with without_collection():
        assert not gc.isenabled()
        imported = [object()]
    assert gc.isenabled()
    assert not any(each is imported for each in gc.get_objects())


def test_failed_import_leaves_the_collector_enabled() -> None:
    with pytest.raises(ImportError), without_collection():
        raise ImportError
    assert gc.isenabled()
