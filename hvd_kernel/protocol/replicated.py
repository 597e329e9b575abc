"""The variables of a rank that a replacement is to get: ``hvd_kernel.keep("model", "opt")`` in a cell names them.

Names, not values: what a rank holds under them when another one is replaced is what travels.
"""

from __future__ import annotations

_names: set[str] = set()


def keep(*names: str) -> None:
    """Have these variables travel from a living rank to one that replaces a dead one; no name: none from now on.

    Parameters
    ----------
    *names
        Names of variables of the ranks.

    Raises
    ------
    ValueError
        A name is none.

    Examples
    --------
    >>> hvd_kernel.keep("model", "opt")
    >>> hvd_kernel.keep("model.weight")
    Traceback (most recent call last):
    ValueError: keep('model.weight') must be given names of variables, as in keep('model', 'opt')
    >>> hvd_kernel.keep()
    """
    wrong = [name for name in names if not isinstance(name, str) or not name.isidentifier()]
    if wrong:
        raise ValueError(f"keep({wrong[0]!r}) must be given names of variables, as in keep('model', 'opt')")
    if not names:
        _names.clear()
    _names.update(names)


def names() -> list[str]:
    """Return what is to travel."""
    return sorted(_names)
