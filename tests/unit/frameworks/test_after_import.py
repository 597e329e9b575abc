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


def test_callback_gets_the_module_that_the_import_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may replace itself in ``sys.modules``; the import statement then binds the replacement."""
    (tmp_path / "hvd_test_replaced.py").write_text(
        "import sys, types\nsys.modules[__name__] = types.ModuleType('other')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    modules: list[object] = []
    AfterImport("hvd_test_replaced", modules.append).begin()
    try:
        imported = importlib.import_module("hvd_test_replaced")
    finally:
        sys.modules.pop("hvd_test_replaced", None)
    assert modules == [imported]
    assert imported.__name__ == "other"


def test_import_succeeds_if_a_callback_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hvd_test_attached.py").write_text("VALUE = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    AfterImport("hvd_test_attached", lambda module: module.no_such_name).begin()
    try:
        assert importlib.import_module("hvd_test_attached").VALUE == 7
    finally:
        sys.modules.pop("hvd_test_attached", None)
    assert "has no attribute 'no_such_name'" in caplog.text
