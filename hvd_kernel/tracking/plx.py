"""Names and contents of the files of a Polyaxon run, in the format of traceml. Pure.

Terms.
  events    events/metric/<name>.plx: a header, then a line per value, which starts with the newline;
            events/<kind>/<name>.plx: the same with a JSON value, for files with a step
  files     outputs/, and assets/<kind>/ for files with a step
  run       run.plx.json, and the index lineages.plx.json
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
    """Return the file name of a metric: ``loss__rank_1`` for ``loss/rank_1``."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^\w\\/.\s-]", "", plain).strip()
    return re.sub(r"[-.\s]+", "-", re.sub(r"[\\/]+", "__", plain)) or "unnamed"


def event_path(kind: str, name: str) -> str:
    """Return the path of a file of events, relative to the run's folder."""
    return f"events/{kind}/{name}.plx"


def header(kind: str) -> str:
    """Return the first line of a file of events, without the newline."""
    return f"step|timestamp|{kind}"


def line(step: int | None, time: float, value: object) -> str:
    """Return an event; without a step its column is empty."""
    return f"\n{'' if step is None else step}|{moment(time).isoformat(' ', 'microseconds')}|{value}"


def metric_summary(lines: Iterable[str]) -> dict[str, Any]:
    """Return a metric's summary from the lines of its file: as pandas' ``describe``, with the last value."""
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
    summary["metric"] = _describe(values)
    return summary


def lineage(name: str, kind: str, path: str, summary: dict[str, Any]) -> dict[str, Any]:
    """Return an entry of lineages.plx.json."""
    return {"name": name, "kind": kind, "path": path, "summary": summary, "is_input": False}


def _describe(values: Sequence[float]) -> dict[str, float | None]:
    finite = sorted(value for value in values if math.isfinite(value))
    last = values[-1] if math.isfinite(values[-1]) else None
    if not finite:
        missing = dict.fromkeys(("mean", "std", "min", "25%", "50%", "75%", "max"))
        return {"count": 0.0, **missing, "last": last}
    mean = math.fsum(finite) / len(finite)
    deviation = (
        math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / (len(finite) - 1)) if finite[1:] else None
    )
    quarters = {f"{percent}%": _quantile(finite, percent / 100) for percent in (25, 50, 75)}
    described = {"mean": mean, "std": deviation, "min": finite[0], **quarters, "max": finite[-1]}
    return {"count": float(len(finite)), **described, "last": last}


def _quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, with linear interpolation."""
    whole, part = divmod((len(values) - 1) * share, 1)
    low, high = values[int(whole)], values[min(int(whole) + 1, len(values) - 1)]
    return low + (high - low) * part
