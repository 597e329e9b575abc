"""Files of ranks in the cluster's private folder, logs and pipes for stacks: called by the ranks' new numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from hvd_kernel.protocol import rank_log
from hvd_kernel.protocol.messages import STACK_PIPE

_LOG = re.compile(r"rank-(\d+)\.(.+)")
_PIPE = re.compile(STACK_PIPE.format(rank=r"(\d+)()"))
_AWAY = "moving-"


def renumber(folder: Path, numbers: Mapping[int, int]) -> None:
    """Rename the files of ranks that stay, before -> now; those of ranks that have left are called ``left-...``."""
    ipython = folder / "ipython"
    if all(before == now for before, now in numbers.items()):
        return
    for place, pattern in ((rank_log.folder(str(ipython)), _LOG), (ipython, _PIPE)):
        found = {path: match for path in place.glob("*") if (match := pattern.fullmatch(path.name))}
        moved = [path.rename(path.with_name(f"{_AWAY}{path.name}")) for path in found]
        for path, match in zip(moved, found.values(), strict=True):
            rank = numbers.get(int(match[1]))
            name = match[0]
            path.rename(path.with_name(f"left-{name}" if rank is None else name.replace(match[1], str(rank), 1)))
