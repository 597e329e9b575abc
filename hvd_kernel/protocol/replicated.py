"""The variables of a rank that a replacement receives: ``hvd_kernel.keep("model", "opt")`` in a cell names them.

Only names are stored: the values are read from a living rank when another one is replaced.
"""

from __future__ import annotations

_names: set[str] = set()


def keep(*names: str) -> None:
    """Copy these variables from a living rank to a rank that replaces a dead one; no names: copy none from now on.

    Parameters
    ----------
    *names
        Names of variables of the ranks.

    Raises
    ------
    ValueError
        If a name is not a Python identifier.

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
    """Return the names of the variables to copy."""
    return sorted(_names)
