"""A setting: one row of the tables, from which environment, traitlets, the page of settings and flags are fed."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_kernel.settings.checks import Check


@dataclass(frozen=True)
class Setting:
    """One row: the variables that set it (the first one set wins), the check of its value, and what it means.

    A value for which the check returns nothing is left to the core; a later row of the same key wins.
    """

    variables: tuple[str, ...]
    check: Check
    default: str
    doc: str
    key: str = ""  # of the core; empty: this package reads it
    flag: str = ""  # the magics' option that says the same for one cell or cluster
    set_by_others: bool = False  # a launcher sets it, or a test: nobody writes it into a configuration file

    @property
    def trait(self) -> str:
        """Its name in a configuration file: ``ranks`` in ``c.HvdKernel.ranks = 4``; empty: it has none there."""
        return "" if self.set_by_others else self.variables[0].partition("_")[2].lower()
