"""The configuration file of ``--config-file``: Horovod's YAML, section by section, into the values of flags.

params: {fusion_threshold_mb: 64}        stall_check: {enabled: false}
controller: gloo                         logging: {level: DEBUG}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvd_kernel.errors import ConfigError
from hvd_kernel.launch.knobs import KNOBS, Knob

CONTROLLERS = ("gloo", "mpi")


def read(path: str) -> dict[str, str]:
    """Return the values that the file sets, by the knobs' ``dest``, and ``controller``.

    Raises
    ------
    ConfigError
        The file cannot be read, or has a section, key or value that means nothing; it is named.
    """
    found: dict[str, str] = {}
    for name, body in _mapping(_load(path), path).items():
        section = _plain(name)
        if section == "controller":
            found["controller"] = _controller(body, path)
        else:
            found |= _section(section, _mapping(body, f"{path}, {name}"), path)
    return found


def _load(path: str) -> Any:
    try:
        import yaml  # type: ignore[import-untyped,unused-ignore]  # noqa: PLC0415 - only who has such a file needs it
    except ImportError:
        raise ConfigError("--config-file needs PyYAML: `pip install pyyaml`, or give flags instead.") from None
    try:
        return yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"the configuration file {path} is not valid YAML: {error}.") from None


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: names with values are wanted there, not {value!r}.")
    return value


def _controller(value: Any, path: str) -> str:
    if str(value).lower() not in CONTROLLERS:
        raise ConfigError(f"{path}: controller: {value!r} must be one of {', '.join(CONTROLLERS)}.")
    return str(value).lower()


def _section(section: str, body: dict[str, Any], path: str) -> dict[str, str]:
    rows = {knob.key: knob for knob in KNOBS if knob.section == section}
    if not rows:
        known = ", ".join(dict.fromkeys(("controller", *(knob.section for knob in KNOBS))))
        raise ConfigError(f"{path}: there is no section {section!r}; there are {known}.")
    found: dict[str, str] = {}
    for name, value in body.items():
        knob = rows.get(_plain(name))
        if knob is None:
            raise ConfigError(f"{path}: section {section} has no {name!r}; it has {', '.join(rows)}.")
        if value is not None:
            found[knob.dest] = _value(knob, value, f"{path}: {section}.{name}")
    return found


def _value(knob: Knob, value: Any, where: str) -> str:
    try:
        return knob.value(str(value))
    except ValueError as wanted:
        raise ConfigError(f"{where}: {value!r} cannot be used: it must be {wanted}.") from None


def _plain(name: Any) -> str:
    return str(name).replace("-", "_")
