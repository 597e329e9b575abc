"""Folder of a job's checkpoints: lists and prunes them.

    checkpoints/commit-0000000300-5f0c11aa/shard-...    all shards of one commit, each written by another rank

The digits after the number identify the last sync of the ranks that wrote it: shards of two attempts are never mixed.
A checkpoint is complete when all its shards exist; no marker file is needed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from hvd_kernel.elastic.checkpoint.shard import NAME, make_folder, remove_folder, sync_folder

_FOLDER = re.compile(r"commit-(?P<number>\d{10,})-(?P<attempt>[0-9a-f]+)")


@dataclass(frozen=True)
class Stored:
    """Checkpoint in the folder, complete or not."""

    path: Path
    number: int
    shards: tuple[Path, ...]  # ordered by number
    complete: bool

    @classmethod
    def at(cls, path: Path, number: int) -> Stored:
        """Return the checkpoint in a folder, with the shards that exist."""
        files = [(match, file) for file in _listed(path) if (match := NAME.fullmatch(file.name))]
        shards = {int(match["number"]): file for match, file in files}
        counts = {int(match["count"]) for match, _ in files}
        complete = len(counts) == 1 and len(files) == len(shards) and set(shards) == set(range(max(counts)))
        return cls(path, number, tuple(shards[shard] for shard in sorted(shards)), complete)


def prepared(folder: Path, number: int, attempt: str) -> Path:
    """Create the folder of a checkpoint, and return it."""
    path = folder / f"commit-{number:010}-{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    make_folder(path)
    return path


def stored(folder: Path) -> list[Stored]:
    """Return the checkpoints of a folder, newest first: by number, then by time of writing."""
    checkpoints = [
        Stored.at(path, int(match["number"])) for path in _listed(folder) if (match := _FOLDER.fullmatch(path.name))
    ]
    return sorted(checkpoints, key=lambda stored: (stored.number, _written(stored.path)), reverse=True)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest complete checkpoints, and incomplete ones older than the newest complete one."""
    checkpoints = stored(folder)
    kept = [checkpoint for checkpoint in checkpoints if checkpoint.complete][:keep]
    for path in [*(checkpoint.path for checkpoint in kept), folder]:
        sync_folder(path)  # before others are removed: another rank has renamed its shard, and may not have synced yet
    for checkpoint in checkpoints if kept else ():
        if checkpoint not in kept and (checkpoint.complete or checkpoint.number < kept[0].number):
            remove_folder(checkpoint.path)


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
