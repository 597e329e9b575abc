"""One process compiles a graph while others wait: the lock, without torch."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvd_kernel.torch import compile_once


class Inductor:
    """A fake of inductor: its cache is read before, and filled after, a graph is compiled."""

    def __init__(self, folder: Path, saved: dict[str, str]) -> None:
        self.counts: Counter[str] = Counter()
        self.fails = False
        self.compiling = threading.Event()
        self.looked = looked = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

        class FxGraphCache:
            @staticmethod
            def _lookup_graph(key: str) -> tuple[str | None, dict[str, Any]]:
                found: tuple[str | None, dict[str, Any]] = (saved.get(key), {})
                if key == "a":
                    looked.set()
                return found

            @staticmethod
            def _save_graph(key: str, graph: str) -> None:
                saved[key] = graph

        self.codecache = SimpleNamespace(FxGraphCache=FxGraphCache, get_lock_dir=lambda: str(folder))
        self.compile_fx = SimpleNamespace(fx_codegen_and_compile=self._compile)
        compile_once.install(self.compile_fx, self.codecache)

    def _compile(self, key: str) -> str:
        self.compiling.set()
        assert self.go_on.wait(60)
        if self.fails:
            raise RuntimeError("no compiler")
        self.counts["compiled"] += 1
        return f"graph {key}"

    def run(self, key: str) -> str:
        """Run a fake of compile_fx_inner."""
        found, _ = self.codecache.FxGraphCache._lookup_graph(key)
        if found is None:
            found = self.compile_fx.fx_codegen_and_compile(key)
            self.codecache.FxGraphCache._save_graph(key, found)
        return str(found)


def test_second_process_reads_what_the_first_compiled(tmp_path: Path) -> None:
    saved: dict[str, str] = {}
    first, second = (Inductor(tmp_path, saved) for _ in range(2))
    first.go_on.clear()
    got: list[str] = []
    threads = [threading.Thread(target=lambda one=one: got.append(one.run("a"))) for one in (first, second)]
    threads[0].start()
    assert first.compiling.wait(60)
    threads[1].start()
    assert second.looked.wait(60), "it has found nothing"
    assert second.run("b") == "graph b", "another graph waits for nobody"
    first.go_on.set()
    for thread in threads:
        thread.join(60)
    assert got == ["graph a", "graph a"]
    assert (first.counts["compiled"], second.counts["compiled"]) == (1, 1)


def test_failed_compilation_releases_waiting_processes(tmp_path: Path) -> None:
    saved: dict[str, str] = {}
    first, second = (Inductor(tmp_path, saved) for _ in range(2))
    first.fails = True
    with pytest.raises(RuntimeError, match="no compiler"):
        first.run("a")
    assert second.run("a") == "graph a"


def test_process_that_waited_too_long_compiles_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_once, "WAIT_S", 0.0)
    saved: dict[str, str] = {}
    first, second = (Inductor(tmp_path, saved) for _ in range(2))
    first.codecache.FxGraphCache._lookup_graph("a")  # its turn, which it keeps
    assert second.run("a") == "graph a"
    assert second.counts["compiled"] == 1


def test_every_process_compiles_without_a_writable_cache(tmp_path: Path) -> None:
    assert Inductor(tmp_path / "none", {}).run("a") == "graph a"


def test_unknown_torch_version_is_not_patched() -> None:
    compile_fx, codecache = SimpleNamespace(fx_codegen_and_compile=len), SimpleNamespace()
    compile_once.install(compile_fx, codecache)
    assert compile_fx.fx_codegen_and_compile is len
