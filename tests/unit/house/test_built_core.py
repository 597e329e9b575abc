"""Installed core against its sources (tests/hvdtest/built_core.py)."""

from __future__ import annotations

import os
from pathlib import Path

from hvdtest.built_core import newer_source


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
