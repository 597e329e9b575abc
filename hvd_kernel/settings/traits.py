"""Traitlets of the settings: ``c.HvdKernel.ranks = 4`` in a Jupyter configuration file, made from the table.

A value of a file wins over the environment: it becomes the variable's value for this kernel and its children. An
invalid value does not prevent the kernel from starting, where its message would be hidden: it raises when ranks are
needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traitlets import TraitType
from traitlets.config import Application, Configurable

from hvd_kernel.errors import ConfigError
from hvd_kernel.settings.setting import Setting
from hvd_kernel.settings.table import SETTINGS

SECTION = "HvdKernel"
"""The class of a configuration file, also in plain IPython."""

ROWS = tuple(row for row in SETTINGS if row.trait)


class SettingTrait(TraitType[Any, Any]):
    """Trait of one setting; None if the file does not set it. ``variables_of`` checks the value, not the start."""

    default_value = None
    allow_none = True

    def from_string(self, s: str) -> str:
        """Accept a value of the command line."""
        return s


def _trait(row: Setting) -> SettingTrait:
    kind: type[SettingTrait] = type(row.check.type, (SettingTrait,), {})  # its name is what --help-all shows
    return kind(help=f"{row.doc} (default: {row.default or 'none'}; {', '.join(row.variables)})").tag(config=True)


class SettingTraits(Configurable):
    """Traitlets of all settings, one per row."""

    vars().update({row.trait: _trait(row) for row in ROWS})


Section: type[SettingTraits] = type(SECTION, (SettingTraits,), {})


def variables_of(section: Any, files: Sequence[str] = ()) -> dict[str, str]:
    """Return a section of a configuration as environment variables.

    Raises
    ------
    ConfigError
        A value cannot be used; the message has its name, its file, and the expected form.
    """
    variables: dict[str, str] = {}
    for row in ROWS:
        value = getattr(section, row.trait)
        if value is None:
            continue
        text = _text(value)
        try:
            row.check(text)
        except ValueError as expected:
            assignment = f"c.{SECTION}.{row.trait} = {value!r}{_place(row.trait, files)}"
            raise ConfigError(f"{assignment} cannot be used: it must be {expected} ({row.doc}).") from None
        variables[row.variables[0]] = text
    return variables


def configured(parent: Configurable) -> dict[str, str]:
    """Return the configuration that the application of a shell or kernel has read, as environment variables.

    Raises
    ------
    ConfigError
        As ``variables_of``.
    """
    files = Application.instance().loaded_config_files if Application.initialized() else []
    return variables_of(Section(parent=parent), files)


def put(variables: Mapping[str, str]) -> dict[str, str | None]:
    """Set variables of this process; return their previous values."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    return before


def put_back(before: Mapping[str, str | None]) -> None:
    """Undo ``put``."""
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _text(value: Any) -> str:
    """Return a value of a file in the form of an environment variable."""
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _place(trait: str, files: Sequence[str]) -> str:
    """Return the files that contain a trait, as a phrase."""
    sources = [file for file in files if Path(file).is_file() and f"{trait}" in Path(file).read_text(errors="replace")]
    return f" in {', '.join(sources)}" if sources else ""
