"""Callbacks after imports: each finder calls back once, also if several wait for one module."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from hvd_kernel.frameworks.after_import import AfterImport


def test_finders_of_one_module_all_call_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hvd_test_waited_for.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    values: list[int] = []
    for _ in range(3):
        AfterImport("hvd_test_waited_for", lambda module: values.append(module.VALUE)).begin()
    try:
        importlib.import_module("hvd_test_waited_for")
    finally:
        sys.modules.pop("hvd_test_waited_for", None)
    assert values == [7, 7, 7]
