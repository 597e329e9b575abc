"""Horovod's environment variables in a project: honoured, without effect, read otherwise, or unknown."""

from __future__ import annotations

import difflib

from hvd_kernel.launch.doctor.finding import Finding, Verdict
from hvd_kernel.launch.environment import own, shared
from hvd_kernel.settings import HOROVOD_VALUES, SETTINGS, UNUSED, horovod
from hvd_kernel.settings.checks import Check

PREFIX = "HOROVOD_"
_TOLD = {*own(["host"], ["host"])[0], *shared(1, ("host", 1), "")}
_CHECKED: dict[str, Check] = {name: row.check for row in SETTINGS for name in row.variables}
_UNUSED = {name: row.reason for row in UNUSED for name in row.variables}
_READ_OTHERWISE = {name for row in HOROVOD_VALUES for name in row.variables}
_KNOWN = sorted(name for name in {*_CHECKED, *_UNUSED, *_READ_OTHERWISE} if name.startswith(PREFIX))


def of(name: str, value: str | None, file: str, line: int) -> list[Finding]:
    """Return what there is to say on a variable that is set, or with None read; nothing where it is not Horovod's."""
    if not name.startswith(PREFIX) or name == PREFIX:
        return []
    what = name if value is None else f"{name}={value}"
    verdict, said, remedy = _judged(name, value)
    return [Finding(file, line, what, verdict, said, remedy)]


def _judged(name: str, value: str | None) -> tuple[Verdict, str, str]:
    if value is None and name in _TOLD:
        return Verdict.RUNS, "hvdrun sets it for each rank", ""
    if name in _UNUSED:
        return Verdict.NOTE, f"without effect: {_UNUSED[name]}", ""
    if name not in _CHECKED and name not in _READ_OTHERWISE:
        near = difflib.get_close_matches(name, _KNOWN, 1, cutoff=0.8)
        return Verdict.NOTE, "nothing here reads it", f"did you mean {near[0]}?" if near else ""
    return _of_value(name, value) if value and "$" not in value else (Verdict.RUNS, "", "")


def _of_value(name: str, value: str) -> tuple[Verdict, str, str]:
    read, told = horovod.read({name: value})
    if told:
        return Verdict.NOTE, told[0].removeprefix(f"{name}={value!r}: ").removesuffix("."), ""
    try:
        if name in _CHECKED and read[name]:
            _CHECKED[name](read[name])
    except ValueError as error:
        return Verdict.LINE, "init() refuses this value", f"write {error}"
    return Verdict.RUNS, "", ""
