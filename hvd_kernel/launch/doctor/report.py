"""Migration report as text or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hvd_kernel.formatting.plural import plural
from hvd_kernel.launch.doctor.finding import Finding, Verdict

_MARKS = {Verdict.RUNS: "ok", Verdict.NOTE: "note", Verdict.LINE: "LINE", Verdict.NOT: "NOT"}
_NOTHING = "nothing of Horovod's was found"


def clean(found: Sequence[Finding]) -> bool:
    """Tell whether all of it runs as it is."""
    return not any(each.verdict in {Verdict.LINE, Verdict.NOT} for each in found)


def as_text(found: Sequence[Finding], read: int) -> str:
    """Return a line for each finding, with the line that it needs below, and the count of both kinds."""
    width = max((len(_place(each)) for each in found), default=0)
    lines = [part for each in found for part in _lines(each, width)]
    return "\n".join([*lines, _sum(found, read)]) + "\n"


def as_json(found: Sequence[Finding], read: Sequence[str]) -> str:
    """Return ``{"runs", "files": [...], "findings": [{"file", "line", "what", "verdict", "said", "remedy"}]}``.

    Those of a notebook have "cell" too.
    """
    listed = [
        {"file": each.file, "line": each.line, "what": each.what, "verdict": each.verdict.value}
        | {"said": each.said, "remedy": each.remedy}
        | ({"cell": each.cell} if each.cell else {})
        for each in found
    ]
    return json.dumps({"runs": clean(found), "files": list(read), "findings": listed}, indent=2) + "\n"


def _place(found: Finding) -> str:
    cell = f":cell {found.cell}" if found.cell else ""
    return f"{found.file}{cell}:{found.line}" if found.line else found.file


def _lines(found: Finding, width: int) -> list[str]:
    said = f": {found.said}" if found.said else ""
    first = f"{_MARKS[found.verdict]:4}  {_place(found):{width}}  {found.what}{said}"
    return [first, f"{'':{width + 8}}-> {found.remedy}"] if found.remedy else [first]


def _sum(found: Sequence[Finding], read: int) -> str:
    files = f"{plural(read, 'file')} read"
    if not found:
        return f"{files}: {_NOTHING}"
    counts = {verdict: sum(each.verdict is verdict for each in found) for verdict in Verdict}
    needs, missing = counts[Verdict.LINE], counts[Verdict.NOT]
    if not needs and not missing:
        return f"{files}: all of it runs as it is"
    parts = [f"{needs} need{'s' * (needs == 1)} a line"] if needs else []
    parts += [f"{missing} {'is' if missing == 1 else 'are'} not here"] if missing else []
    return f"{files}: {counts[Verdict.RUNS] + counts[Verdict.NOTE]} run as they are, {', '.join(parts)}"
