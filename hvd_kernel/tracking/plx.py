"""Polyaxon's files of a run, as text and names: those that traceml writes. Pure.

Terms.
  events    events/metric/<name>.plx: a header, then a line per value, which begins with the line's end;
            events/<kind>/<name>.plx, of files with a step: the same with a JSON value
  files     outputs/, and assets/<kind>/ for those with a step
  run       run.plx.json, and lineages.plx.json: what there is of it
"""

from __future__ import annotations

import math
import re
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from hvd_kernel.tracking.sink import moment

RUN, LINEAGES, OUTPUTS = "run.plx.json", "lineages.plx.json", "outputs"


def name_of(name: str) -> str:
    """Return a metric's name as a file has it: ``loss/rank_1`` is ``loss__rank_1``."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^\w\\/.\s-]", "", plain).strip()
    return re.sub(r"[-.\s]+", "-", re.sub(r"[\\/]+", "__", plain)) or "unnamed"


def event_path(kind: str, name: str) -> str:
    """Return where the events of a name are, in the run's folder."""
    return f"events/{kind}/{name}.plx"


def header(kind: str) -> str:
    """Return the first line of a table, without its end."""
    return f"step|timestamp|{kind}"


def line(step: int | None, time: float, value: object) -> str:
    """Return one event; a value that no step belongs to has none."""
    return f"\n{'' if step is None else step}|{moment(time).isoformat(' ', 'microseconds')}|{value}"


def metric_summary(lines: Iterable[str]) -> dict[str, Any]:
    """Return what the lineage says of a metric, given its file's lines: pandas' ``describe``, with the last value."""
    steps = array("q")
    values = array("d")  # a long training has millions
    first = last = ""
    for text in lines:
        step, time, value = text.rstrip("\n").split("|")
        if value == "metric":
            continue  # the header
        first, last = first or time, time
        values.append(float(value))
        if step:
            steps.append(int(step))
    summary: dict[str, Any] = {"is_event": True}
    if steps:
        summary["step"] = {"count": len(steps), "min": min(steps), "max": max(steps)}
    summary["timestamp"] = {"min": first.replace(" ", "T"), "max": last.replace(" ", "T")}
    summary["metric"] = _described(values)
    return summary


def lineage(name: str, kind: str, path: str, summary: dict[str, Any]) -> dict[str, Any]:
    """Return one entry of lineages.plx.json."""
    return {"name": name, "kind": kind, "path": path, "summary": summary, "is_input": False}


def _described(values: Sequence[float]) -> dict[str, float | None]:
    known = sorted(value for value in values if math.isfinite(value))
    last = values[-1] if math.isfinite(values[-1]) else None
    if not known:
        none = dict.fromkeys(("mean", "std", "min", "25%", "50%", "75%", "max"))
        return {"count": 0.0, **none, "last": last}
    mean = math.fsum(known) / len(known)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)) if known[1:] else None
    quarters = {f"{percent}%": _quantile(known, percent / 100) for percent in (25, 50, 75)}
    described = {"mean": mean, "std": deviation, "min": known[0], **quarters, "max": known[-1]}
    return {"count": float(len(known)), **described, "last": last}


def _quantile(known: Sequence[float], share: float) -> float:
    """Return the value at a share of the way through sorted values, between two of them in proportion."""
    whole, part = divmod((len(known) - 1) * share, 1)
    low, high = known[int(whole)], known[min(int(whole) + 1, len(known) - 1)]
    return low + (high - low) * part
