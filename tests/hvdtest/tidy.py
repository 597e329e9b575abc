"""Tidies up in a kernel and in its ranks when a test has ended. Runs inside them, so it imports nothing heavy.

Terms.
  residue   leftovers of a test other than variables, which it should have ended; they are reported
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hvd_kernel

READY = {"hvd", "rank", "size", "local_rank", "device"}  # a rank's own names
_before: list[dict[str, Any]] = []
_environment = dict(os.environ)  # as it was when the first test began


def figures(values: dict[str, Any]) -> None:
    """Set attributes of modules: ``cell_view_GRACE_S`` is GRACE_S of magics/cell_view.py, as names of files are unique."""
    _before.append({})
    for name, value in values.items():
        owner, attribute = _place(name)
        _before[-1][name] = getattr(owner, attribute)
        setattr(owner, attribute, value)


def figures_back() -> None:
    """Restore the figures that were set most recently."""
    for name, value in _before.pop().items():
        setattr(*_place(name), value)


def _place(name: str) -> tuple[Any, str]:
    for cut in (match.start() for match in re.finditer("_", name)):
        *through, attribute = name[cut + 1 :].split(".")
        for module in map(importlib.import_module, _modules(name[:cut])):
            owner: Any = module
            for each in through:
                owner = getattr(owner, each, None)
            if hasattr(owner, attribute):
                return owner, attribute
    raise LookupError(f"{name}: write the name of a module, an underscore, and what that module has")


def _modules(name: str) -> Iterator[str]:
    """Return the modules of that name of a notebook's kernel."""
    root = Path(hvd_kernel.__file__).parent
    for room in ("magics", "cluster", "processes", "diagnosis"):
        for file in sorted((root / room).rglob(f"{name}.py")):
            yield ".".join(("hvd_kernel", *file.relative_to(root).with_suffix("").parts))


def kernel(shell: Any) -> list[str]:
    """Delete the names of cells here and on living ranks; end jobs, and return their names."""
    while _before:
        figures_back()
    from hvd_kernel.magics import context_of

    context = context_of(shell)
    assert context is not None
    manager, transformer = context.manager, context.transformer
    left = [f"job {job.name}" for job in manager.jobs if not job.ended.is_set()]
    if left:
        shell.run_line_magic("hvdcancel", "all")
    if transformer.auto:
        left.append("%hvdauto on")
        transformer.auto = False
    manager.respawn = ""
    os.environ.clear()
    os.environ.update(_environment)
    _forget(shell, set())
    shell.user_ns["Out"].clear()
    if manager.session is not None:
        _ranks(manager.session)
    return left


def _ranks(session: Any) -> None:
    if session.dead or session.running:
        return  # the next test gets repaired ranks
    from hvdtest.cluster import execute

    execute(session, RANK)


RANK = "__import__('hvdtest.tidy').tidy.rank(get_ipython())"


def rank(shell: Any) -> None:
    """Delete the names of cells on a rank, and its kept state."""
    from hvd_kernel.protocol import notebook

    notebook.keep()
    _forget(shell, READY)


def _forget(shell: Any, but: set[str]) -> None:
    hidden = set(shell.user_ns_hidden) | but
    for name in [name for name in shell.user_ns if not name.startswith("_") and name not in hidden]:
        del shell.user_ns[name]
