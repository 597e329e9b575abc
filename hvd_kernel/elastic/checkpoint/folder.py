"""The folder of a job's checkpoints: which are complete, the newest of them, and which may go.

    checkpoints/commit-0000000300-5f0c11aa/shard-...    of one commit all shards, each written by another rank

The digits behind the number are of the last sync of the ranks that wrote it: shards of two attempts are never mixed.
A checkpoint counts when all its shards are there; nobody has to say that it is complete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hvd_kernel.elastic.checkpoint.files import make_folder, remove_folder, sync_folder
from hvd_kernel.elastic.checkpoint.shard import NAME

_FOLDER = re.compile(r"commit-(?P<number>\d{10,})-(?P<attempt>[0-9a-f]+)")


@dataclass(frozen=True)
class Stored:
    """A checkpoint that is there, with all its shards or some."""

    path: Path
    number: int
    shards: tuple[Path, ...]  # by their numbers, where it is complete
    complete: bool

    @classmethod
    def at(cls, path: Path, number: int) -> Stored:
        """Look which shards a folder has."""
        named = [(found, file) for file in _listed(path) if (found := NAME.fullmatch(file.name))]
        shards = {int(found["number"]): file for found, file in named}
        counts = {int(found["count"]) for found, _ in named}
        complete = len(counts) == 1 and len(named) == len(shards) and set(shards) == set(range(max(counts)))
        return cls(path, number, tuple(shards[each] for each in sorted(shards)), complete)


def prepared(folder: Path, number: int, attempt: str) -> Path:
    """Make the folder of a checkpoint, and return it."""
    path = folder / f"commit-{number:010}-{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    make_folder(path)
    return path


def stored(folder: Path) -> list[Stored]:
    """Return the checkpoints of a folder, the newest first: of those of one number the one written last."""
    found = [
        Stored.at(path, int(matched["number"])) for path in _listed(folder) if (matched := _FOLDER.fullmatch(path.name))
    ]
    return sorted(found, key=lambda one: (one.number, _written(one.path)), reverse=True)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest complete ones, and what was left unfinished before the newest of them."""
    there = stored(folder)
    kept = [one for one in there if one.complete][:keep]
    for path in [*(one.path for one in kept), folder]:
        sync_folder(path)  # durable before others go: another rank has renamed its shard, and may not have synced
    for one in there if kept else ():
        if one not in kept and (one.complete or one.number < kept[0].number):
            remove_folder(one.path)


def _written(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _listed(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
