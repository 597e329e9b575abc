"""Parse lines of magics by their rows of the table."""

from __future__ import annotations

from hvd_kernel.magics.commands.index import MAGICS
from hvd_kernel.magics.options import Options


def parse(magic: str, line: str) -> Options:
    return MAGICS[magic].parse(line)


def spellings(magic: str) -> list[str]:
    return [spelling for flag in MAGICS[magic].flags for spelling in flag.spellings]
