"""``Checkpoint``: commits of an elastic state on disk, written beside the training and taken by a job that begins.

Terms.
  commit  what a state keeps in memory on each rank; a checkpoint is one of them, stored
  shard   what one rank writes of it: of what is the same on all ranks a part, of the rest rank 0 all
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from pathlib import Path
from typing import Any

from hvd_kernel.core import session
from hvd_kernel.elastic.checkpoint import folder as folders
from hvd_kernel.elastic.checkpoint import shard as shards
from hvd_kernel.elastic.checkpoint.files import remove_folder
from hvd_kernel.elastic.checkpoint.shard import Damaged, Shard
from hvd_kernel.elastic.checkpoint.values import Encoder, Tensor, decode
from hvd_kernel.elastic.state import Snapshot, State
from hvd_kernel.errors import StateLost

SMALLEST_SHARD = 1 << 20  # bytes: less is not worth another file
_REMEMBERED = 3  # a rank that writes the last may still be at the one before it, and has ended the first
_LOG = logging.getLogger("hvd_kernel")


class Checkpoint:
    """Store every so many commits of a state in a folder, and begin from the newest when no rank has trained yet.

    The folder is one that all hosts share. Each rank writes a part of what is the same on all (parameters, the
    optimizer's state), rank 0 all that is its own (buffers, plain values, the sampler's place), in a thread: training
    goes on meanwhile. A job of any number of ranks goes on from it. A checkpoint is there whole or does not count; one
    that has been damaged is told and the one before it is taken. Files are in the format of safetensors: reading one
    runs no code. When the disk is full a warning says so, training goes on, and the checkpoints before stay.

    Parameters
    ----------
    directory
        The folder; it is made.
    every
        Store a commit whenever so many commits and steps have been made.
    keep
        How many complete checkpoints stay, at least 1.

    Raises
    ------
    ValueError
        ``every`` or ``keep`` is less than 1.

    Examples
    --------
    >>> import tempfile
    >>> folder = hvd.broadcast_object(tempfile.mkdtemp())
    >>> @hvd.elastic.run
    ... def train(state):
    ...     while state.epoch < 3:
    ...         state.epoch += 1
    ...         state.commit()
    ...     return state.epoch
    >>> for begins in range(2):  # the second job has nothing left to do
    ...     state = hvd.elastic.ObjectState(epoch=0)
    ...     checkpoint = hvd.elastic.Checkpoint(folder, every=1)
    ...     checkpoint.attach(state)
    ...     epochs = train(state)
    ...     checkpoint.wait()
    >>> state.commit_number
    3
    """

    def __init__(self, directory: str | os.PathLike[str], every: int = 1, keep: int = 2) -> None:
        if min(every, keep) < 1:
            raise ValueError(f"every={every} and keep={keep}: both are 1 or more")
        self.directory = Path(directory).absolute()
        self.every = every
        self.keep = keep
        self.resumed: Path | None = None
        """What this process has loaded, if anything."""
        self._state: State | None = None
        self._writer: threading.Thread | None = None
        self._failure: OSError | None = None
        self._written: deque[Path] = deque(maxlen=_REMEMBERED)  # by rank 0

    def attach(self, state: State) -> None:
        """Store commits of this state, and have ``elastic.run`` load it before the first sync of a job.

        Raises
        ------
        NotImplementedError
            The state is of a kind that says nothing about what it keeps.
        """
        _check_tells_all(state)
        self._state = state
        state.register_source(self.load)
        state.register_commit_callbacks([self._on_commit])

    def save(self) -> None:
        """Store the last commit, on all ranks; returns when its values are taken, not when they are written.

        Where the checkpoint before is still being written, that is waited for.

        Raises
        ------
        NotStorable
            A value is of a type that files cannot hold: a TypeError, with the place of the value.
        """
        state = self._attached()
        snapshot, rank, size = state.snapshot(), session.rank(), session.size()
        encoder = Encoder()
        tree = {"alike": encoder.encode(snapshot.alike, "alike")}
        count, part = share_of(encoder.tensors, rank, size)
        if rank == 0:
            own = Encoder()
            tree["own"] = own.encode(snapshot.own, "own")
            part |= own.tensors
        metadata: dict[str, Any] = {"number": state.commit_number, "ranks": size, "tree": tree if rank == 0 else None}
        self._join()
        if rank < count:
            what = (state.commit_number, state.sync_id, rank, count, Shard(metadata, part))
            self._writer = threading.Thread(target=self._write, args=what, name="hvd-checkpoint")
            self._writer.start()

    def wait(self) -> None:
        """Return when this rank has written what it has to.

        Raises
        ------
        OSError
            It could not; the message names the file.
        """
        self._join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def load(self) -> int:
        """Take the newest checkpoint that is whole, in this process, and return its number; 0: there is none.

        Raises
        ------
        StateLost
            There are checkpoints, and none can be used: nothing is begun anew by mistake.
        """
        refused = []
        for one in folders.stored(self.directory):
            if not one.complete:
                continue
            try:
                snapshot, number, ranks = _read(one)
            except Damaged as error:
                refused.append(str(error))
                _LOG.warning("checkpoint: %s. The one before it is looked at.", error)
                continue
            self._attached().load_snapshot(snapshot, number)
            self.resumed = one.path
            _LOG.warning("checkpoint: resumed from %s: commit %d, written by %d ranks", one.path, number, ranks)
            return number
        if refused:
            raise StateLost(
                f"None of {len(refused)} checkpoints in {self.directory} can be used. Remove them to begin anew. "
                + " ".join(refused)
            )
        return 0

    def _on_commit(self, before: int, now: int) -> None:
        if before // self.every != now // self.every:
            self.save()

    def _write(self, number: int, attempt: str, rank: int, count: int, part: Shard) -> None:
        try:
            path = folders.prepared(self.directory, number, attempt)
            shards.write(path, rank, count, part)
            if rank == 0:
                self._written.append(path)
                self._check_others()
                folders.prune(self.directory, self.keep)
        except OSError as error:
            self._failure = error
            _LOG.warning("checkpoint: commit %d is not stored: %s. Training goes on; older ones stay.", number, error)

    def _check_others(self) -> None:
        """Say when the one before the last is not complete: the others have begun the next, so they have ended it."""
        if len(self._written) < _REMEMBERED:
            return
        for one in folders.stored(self.directory):
            if one.path == self._written[0] and not one.complete:
                _LOG.warning(
                    "checkpoint: %s has only the shards %s. Others could not be written, or have been elsewhere: the "
                    "folder has to be one that all hosts share.",
                    one.path,
                    ", ".join(path.name for path in one.shards),
                )
                remove_folder(one.path)

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _attached(self) -> State:
        if self._state is None:
            raise ValueError("The checkpoint has no state yet: call its attach(state) first.")
        return self._state


def _check_tells_all(state: State) -> None:
    """Refuse a class that saves something of its own and whose snapshot is that of a class above it."""
    state.snapshot()
    saves, tells = (next(one for one in type(state).__mro__ if name in vars(one)) for name in ("save", "snapshot"))
    if not issubclass(tells, saves):
        raise NotImplementedError(
            f"{saves.__name__} has a save() of its own, and its snapshot() is that of {tells.__name__}: a checkpoint "
            "would lack what only save() knows. Give it snapshot() and load_snapshot()."
        )


def share_of(tensors: dict[str, Tensor], rank: int, ranks: int) -> tuple[int, dict[str, Tensor]]:
    """Return by how many ranks they are written, and this rank's share: each time the largest to who has least.

    >>> share_of({}, 0, 4)
    (1, {})
    """
    count = max(1, min(ranks, sum(one.data.nbytes for one in tensors.values()) // SMALLEST_SHARD))
    loads = [0] * count
    mine = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].data.nbytes, item[0])):
        writer = loads.index(min(loads))
        loads[writer] += tensor.data.nbytes
        if writer == rank:
            mine[name] = tensor
    return count, mine


def _read(one: folders.Stored) -> tuple[Snapshot, int, int]:
    parts = [shards.read(path) for path in one.shards]
    first = parts[0].metadata
    tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
    numbers = {part.metadata.get("number") for part in parts}
    if numbers != {one.number}:
        raise Damaged(f"{one.path} is damaged: its shards are of commits {sorted(map(str, numbers))}")
    try:
        tree = first["tree"]
        return Snapshot(decode(tree["alike"], tensors), decode(tree["own"], tensors)), one.number, int(first["ranks"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{one.shards[0]} is damaged: {error}") from None
