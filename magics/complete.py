"""Completion of the magics' options and verbs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hvd_kernel.magics.options import TABLE, flags
from hvd_kernel.magics.verbs import VERBS

WORDS = {"%hvd": list(VERBS), "%hvdauto": ["on", "off"]}


def install(shell: Any) -> None:
    """Tell IPython's completer; it asks for a line that begins with one of our magics."""
    for magic in {*TABLE, *WORDS}:
        shell.set_hook("complete_command", _complete, str_key=magic)


def _complete(_completer: object, event: SimpleNamespace) -> list[str]:
    options = flags(event.command) if event.command in TABLE else []
    if event.symbol.startswith("-"):
        return options
    return WORDS.get(event.command, []) or (options if not event.symbol else [])
