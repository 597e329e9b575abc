"""Traceback of a cell without what libraries call inside: which frames are shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import hvd_kernel
from hvd_kernel.formatting.plural import plural


def folded(parts: Sequence[str], packages: Mapping[str, str], where: str) -> list[str]:
    """Leave out of a traceback what libraries call inside, but for the line that raised, unless it is ours.

    Parameters
    ----------
    parts
        The traceback: a text for each frame, outermost first, and others between the frames of different exceptions.
    packages
        Text of a frame -> its package.
    where
        What to say of where all of it is.
    """
    if "" not in (packages.get(part) for part in parts):
        return list(parts)  # nothing is the user's: who knows what explains it
    shown: list[str] = []
    runs = [(library, list(run)) for library, run in groupby(parts, lambda part: bool(packages.get(part)))]
    for (library, run), (_, behind) in zip(runs, [*runs[1:], (False, [""])], strict=True):
        raised = library and behind[0] not in packages and packages[run[-1]] != hvd_kernel.__name__
        left_out, kept = (run[:-1], run[-1:]) if raised else (run, []) if library else ([], run)
        shown += [_fold(left_out, packages, where)] * bool(left_out) + kept
    return shown


def _fold(frames: Sequence[str], packages: Mapping[str, str], where: str) -> str:
    names = " and ".join(dict.fromkeys(packages[frame] for frame in frames))
    return f"… {plural(len(frames), 'frame')} in {names} ({where})\n"
