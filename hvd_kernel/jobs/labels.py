"""DNS labels, which Kubernetes uses as names: the name of a job is a prefix of its pods' names, of limited length.

Source: RFC 1035; https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#rfc-1035-label-names
"""

from __future__ import annotations

import re

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_LONGEST = 63


def wrong(name: str, last: str, kind: str) -> str:
    """Return what is wrong with a job's name, whose last pod is named name + ``last``, or an empty string."""
    pod = name + last
    if not _LABEL.fullmatch(name):
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("0123456789-")[: _LONGEST - len(last)].rstrip("-")
        remedy = f", such as {near!r}" if near else ""
        return f"{name!r} is not a {kind}'s name (small letters, digits and dashes, a letter first){remedy}"
    if len(pod) > _LONGEST:
        over = f"has {len(pod)} characters, and {_LONGEST} are allowed: shorten it by {len(pod) - _LONGEST}"
        return f"{name!r} is too long for this {kind}: the name of its pod {pod} {over}"
    return ""
