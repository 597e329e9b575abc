"""Compare the installed core with its sources: an outdated core makes test results meaningless, so no test starts.

A rebase or an edit that changes native/ leaves what .ci/setup installed as it was, and an old core fails with names that are
not there, or passes for the wrong reason.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {".cc", ".h", ".cu", ".cuh"}


def newer_source(sources: Iterable[Path], libraries: Iterable[Path]) -> Path | None:
    """Return the newest source if it is newer than every library; None otherwise, or if there is no library."""
    built = max((library.stat().st_mtime for library in libraries), default=None)
    newest = max(sources, key=lambda source: source.stat().st_mtime, default=None)
    if built is None or newest is None or newest.stat().st_mtime <= built:
        return None
    return newest


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # the controller has looked
        return
    installed = Path(sysconfig.get_path("platlib")) / "hvd_kernel"  # an import of it would cost a second
    source = newer_source(
        (path for path in (ROOT / "native").rglob("*") if path.suffix in SOURCES), installed.glob("*.so")
    )
    if source is not None:
        pytest.exit(f"{source.relative_to(ROOT)} is newer than the installed core: run make build/.test first", 4)
