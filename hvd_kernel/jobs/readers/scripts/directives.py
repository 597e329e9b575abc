"""Directives at the head of a batch script: ``#SBATCH --nodes=2``, ``#BSUB -n 8``, as flags with values and lines."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from hvd_kernel.jobs.quantities import size
from hvd_kernel.jobs.spec import JobError

_COUNT = re.compile(r"[1-9][0-9]{0,5}|0", re.ASCII)


class Directive(NamedTuple):
    """A flag: its name without dashes, its value, and where it stands."""

    flag: str
    value: str
    where: str

    def error(self, what: str) -> JobError:
        """Return an error on this flag."""
        return JobError(f"{self.where}: {self.flag} {self.value!r} {what}.")

    def count(self, low: int = 1) -> int:
        """Return the value as a whole number.

        Raises
        ------
        JobError
            It is none, or below ``low``.
        """
        if not _COUNT.fullmatch(self.value) or int(self.value) < low:
            raise self.error(f"must be a whole number, at least {low}")
        return int(self.value)

    def bytes(self, unit: int) -> int:
        """Return the value as an amount of memory; a plain number counts ``unit`` bytes.

        Raises
        ------
        JobError
            It is none.
        """
        try:
            return size(self.value, unit=unit)
        except ValueError as error:
            raise JobError(f"{self.where}: {self.flag}: {error}.") from None


class Head(dict[str, Directive]):
    """The flags of one component; of one that is given twice the last counts, as schedulers do."""

    def text(self, name: str) -> str:
        """Return a flag's value; empty: it is not there."""
        return self[name].value if name in self else ""


def of(text: str, mark: str, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield where each directive stands, and its words. The first line that does something ends the head.

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
