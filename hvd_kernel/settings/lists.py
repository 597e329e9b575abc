"""Lists as users type them, with commas: ``-H a:2,b:2``, ``--ranks 0,2``, ``HVD_RANK_CORES=2,2``."""

from __future__ import annotations


def entries(text: str) -> list[str]:
    """Return the entries of a list, without blanks around them and without empty ones, as Open MPI does.

    >>> entries("a:2, b:2,,")
    ['a:2', 'b:2']
    """
    return [entry for entry in (part.strip() for part in text.split(",")) if entry]
