"""Tidies up in a kernel and in its ranks when a test has ended. Runs inside them, so it imports nothing heavy.

Words.
  residue   what a test has left that is no variable: it should have ended it itself, and is named for it
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from typing import Any

_ROOMS = (
    *("magics", "magics.commands", "magics.display", "magics.shell"),
    *("cluster", "cluster.requests", "diagnosis", "processes"),
)
READY = {"hvd", "rank", "size", "local_rank", "device"}  # a rank's own names
_before: list[dict[str, Any]] = []
_environment = dict(os.environ)  # as it was when the first test began


def figures(values: dict[str, Any]) -> None:
    """Set attributes of modules: ``runner_GRACE_S`` is GRACE_S of runner.py in the first of the rooms that has it."""
    _before.append({})
    for name, value in values.items():
        owner, attribute = _place(name)
        _before[-1][name] = getattr(owner, attribute)
        setattr(owner, attribute, value)


def figures_back() -> None:
    """Have the figures that were set last be what they were."""
    for name, value in _before.pop().items():
        setattr(*_place(name), value)


def _place(name: str) -> tuple[Any, str]:
    found = re.fullmatch(r"([a-z_]+?)_(_?[A-Z].*)", name)
    assert found, f"{name} names no figure of a module"
    module, rest = found.groups()
    places = (f"hvd_kernel.{room}.{module}" for room in _ROOMS)
    owner: Any = importlib.import_module(next(place for place in places if importlib.util.find_spec(place)))
    *through, attribute = rest.split(".")
    for each in through:
        owner = getattr(owner, each)
    return owner, attribute


def kernel(shell: Any) -> list[str]:
    """Forget the cells' names here and on living ranks; end jobs, and say which there were."""
    while _before:
        figures_back()
    registry = shell.magics_manager.registry
    holder, transformer = registry["RunMagics"].holder, registry["ControlMagics"].transformer
    left = [f"job {job.name}" for job in holder.jobs if not job.ended.is_set()]
    if left:
        shell.run_line_magic("hvdcancel", "all")
    if transformer.auto:
        left.append("%hvdauto on")
        transformer.auto = False
    holder.respawn = ""
    os.environ.clear()
    os.environ.update(_environment)
    _forget(shell, set())
    shell.user_ns["Out"].clear()
    if holder.session is not None:
        _ranks(holder.session)
    return left


def _ranks(session: Any) -> None:
    if session.dead or session.running:
        return  # whoever comes next has them mended
    from hvdtest.cluster import execute

    execute(session, RANK)


RANK = "__import__('hvdtest.tidy').tidy.rank(get_ipython())"


def rank(shell: Any) -> None:
    """Forget the cells' names on a rank, and what was to be kept."""
    from hvd_kernel.protocol import replicated

    replicated.keep()
    _forget(shell, READY)


def _forget(shell: Any, but: set[str]) -> None:
    hidden = set(shell.user_ns_hidden) | but
    for name in [name for name in shell.user_ns if not name.startswith("_") and name not in hidden]:
        del shell.user_ns[name]
