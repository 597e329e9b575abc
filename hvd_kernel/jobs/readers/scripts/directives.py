"""Directives in the head of a batch script, ``#SBATCH --nodes=2`` or ``#BSUB -n 8``: flags, values and positions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from hvd_kernel.jobs.quantities import size
from hvd_kernel.jobs.spec import JobError

_COUNT = re.compile(r"[1-9][0-9]{0,5}|0", re.ASCII)


class Directive(NamedTuple):
    """A flag: its name without dashes, its value, and its position."""

    flag: str
    value: str
    where: str

    def error(self, problem: str) -> JobError:
        """Return an error about this flag."""
        return JobError(f"{self.where}: {self.flag} {self.value!r} {problem}.")

    def count(self, low: int = 1) -> int:
        """Return the value as an integer.

        Raises
        ------
        JobError
            The value is not an integer, or is below ``low``.
        """
        if not _COUNT.fullmatch(self.value) or int(self.value) < low:
            raise self.error(f"must be a whole number, at least {low}")
        return int(self.value)

    def bytes(self, unit: int) -> int:
        """Return the value as bytes of memory; a plain number is in units of ``unit`` bytes.

        Raises
        ------
        JobError
            The value is not an amount of memory.
        """
        try:
            return size(self.value, unit=unit)
        except ValueError as error:
            raise JobError(f"{self.where}: {self.flag}: {error}.") from None


class Head(dict[str, Directive]):
    """The flags of a component by name; the last of duplicate flags takes precedence, as in schedulers."""

    def text(self, name: str) -> str:
        """Return a flag's value, or an empty string."""
        return self[name].value if name in self else ""


def of(text: str, mark: str, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the position and the words of each directive, up to the first command.

    Raises
    ------
    JobError
        A quote is not closed.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(mark):
            where = f"{name}:{number}: {mark}"
            try:
                yield where, shlex.split(line[len(mark) :], comments=True)
            except ValueError as error:
                raise JobError(f"{where}: {str(error).lower()}: close it.") from None
        elif line.strip() and not line.lstrip().startswith("#"):
            return
