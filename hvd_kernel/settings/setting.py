"""Setting: one row of the tables, which define variables, traitlets, flags and the page of settings."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_kernel.settings.checks import Check


@dataclass(frozen=True)
class Setting:
    """One row: its variables (the first one set wins), the check of its value, and its meaning.

    If the check returns "", the core chooses the value; a later row of the same key wins.
    """

    variables: tuple[str, ...]
    check: Check
    default: str
    doc: str
    key: str = ""  # name in the core; empty: this package reads the setting
    flag: str = ""  # the magics' option with the same meaning, for one cell or cluster
    set_by_others: bool = False  # set by a launcher or a test, never in a configuration file

    @property
    def trait(self) -> str:
        """The name in a configuration file: ``ranks`` in ``c.HvdKernel.ranks = 4``; empty if it cannot be set there."""
        return "" if self.set_by_others else self.variables[0].partition("_")[2].lower()
