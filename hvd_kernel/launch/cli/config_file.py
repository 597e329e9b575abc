"""Configuration file of ``--config-file``: Horovod's YAML, translated into the values of flags.

params: {fusion_threshold_mb: 64}        stall_check: {enabled: false}
controller: gloo                         logging: {level: DEBUG}
elastic: {min_np: 2, max_np: 8}          (not Horovod's)

Unknown sections and keys are ignored with a warning: those of Horovod's versions differ.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.jobs.tables.knobs import KNOBS, Knob
from hvd_kernel.launch.cli.elastic import FLAGS, ElasticFlag

if TYPE_CHECKING:
    from hvd_kernel.jobs.documents import Document

CONTROLLERS = ("gloo", "mpi")
Row = Knob | ElasticFlag
_ROWS: tuple[Row, ...] = (*KNOBS, *FLAGS)


def read(path: str) -> tuple[dict[str, str], list[str]]:
    """Return the values that the file sets, by ``dest`` or as ``controller``, and warnings on what was ignored.

    Raises
    ------
    ConfigError
        The file cannot be read, or has an invalid value; it is named, with line and column.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}.") from None
    if not any(line.partition("#")[0].strip(" \t-") for line in text.splitlines()):
        return {}, []
    from hvd_kernel.jobs import documents  # noqa: PLC0415 - only such files need YAML

    reader = _Reader(documents.parse(text, path))
    reader.read()
    return reader.values, reader.warnings


@dataclass
class _Reader:
    document: Document
    values: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def read(self) -> None:
        sections = dict.fromkeys(row.section for row in _ROWS)
        for name, body in self._mapping(()).items():
            if _plain(name) == "controller":
                self._controller(name, body)
            elif _plain(name) in sections:
                self._section(name, {row.key: row for row in _ROWS if row.section == _plain(name)})
            else:
                self._ignore((name,), ("controller", *sections))

    def _controller(self, name: str, value: Any) -> None:
        if value is None:
            return
        if str(value).lower() not in CONTROLLERS:
            raise self.document.error((name,), f"{value!r} must be one of {', '.join(CONTROLLERS)}")
        self.values["controller"] = str(value).lower()

    def _section(self, section: str, rows: dict[str, Row]) -> None:
        for name, value in self._mapping((section,)).items():
            row = rows.get(_plain(name))
            if row is None:
                self._ignore((section, name), rows)
            elif value is not None:
                self.values[row.dest] = self._value(row, (section, name), value)

    def _mapping(self, path: tuple[str, ...]) -> dict[str, Any]:
        value = self.document.value
        for name in path:
            value = value[name]
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.document.error(path, f"must be a mapping of names to values, not {value!r}")
        return value

    def _value(self, row: Row, path: tuple[str, ...], value: Any) -> str:
        try:
            return row.value(str(value))
        except ValueError as error:
            raise self.document.error(path, f"{value!r} cannot be used: it must be {error}") from None

    def _ignore(self, path: tuple[str, ...], names: Iterable[str]) -> None:
        near = difflib.get_close_matches(_plain(path[-1]), names, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        where = str(self.document.error(path, "is ignored")).rstrip(".")
        self.warnings.append(f"{where}: {hint}known: {', '.join(names)}")


def _plain(name: str) -> str:
    return name.replace("-", "_")
