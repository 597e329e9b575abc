"""``Checkpoint``: commits of an elastic state on disk, written during the training and loaded by a job that starts.

Terms.
  commit  the values that a state saves in memory on each rank; a checkpoint is a stored commit
  shard   the file of one rank: a part of the values that are the same on all ranks; on rank 0 also all other values
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
from hvd_kernel.elastic.checkpoint.shard import Damaged, Shard, remove_folder
from hvd_kernel.elastic.checkpoint.values import Encoder, Tensor, decode
from hvd_kernel.elastic.state import Snapshot, State
from hvd_kernel.errors import StateLost

SMALLEST_SHARD = 1 << 20  # bytes; fewer are not worth another file
_REMEMBERED = 3  # while rank 0 writes the last, another rank may write the second last, but has finished the first
PREVIOUS = "Trying the previous one."
UNUSABLE = "None of {count} checkpoints in {folder} can be used. Remove them to start from the beginning. "
_OF_RANK_0 = "own"  # name of these values in the files
_LOG = logging.getLogger("hvd_kernel")


class Checkpoint:
    """Store every n-th commit of a state in a folder, and load the newest when no rank has trained yet.

    All hosts share the folder. Each rank writes a part of the values that are the same on all ranks (parameters, the
    optimizer's state), rank 0 also its own values (buffers, plain values, the sampler's position). A thread writes
    while training continues. A job with any number of ranks can load a checkpoint. Incomplete checkpoints are ignored;
    a damaged one is reported, and the previous one is loaded. Files are in the safetensors format: reading one runs no
    code. When the disk is full, a warning is logged, training continues, and earlier checkpoints are kept.

    Parameters
    ----------
    directory
        The folder; it is created.
    every
        Number of commits and steps between two checkpoints.
    keep
        Number of complete checkpoints to keep, at least 1.

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
    >>> for job in range(2):  # the second job has nothing left to do
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
        """The checkpoint that this process has loaded, if any."""
        self._state: State | None = None
        self._writer: threading.Thread | None = None
        self._failure: OSError | None = None
        self._written: deque[Path] = deque(maxlen=_REMEMBERED)  # by rank 0

    def attach(self, state: State) -> None:
        """Store commits of this state, and let ``elastic.run`` load it before the first sync of a job.

        Raises
        ------
        NotImplementedError
            The state's class defines no snapshot.
        """
        _check_snapshot_is_complete(state)
        self._state = state
        state.register_source(self.load)
        state.register_commit_callbacks([self._on_commit])

    def save(self) -> None:
        """Store the last commit, on all ranks; return when its values are copied, before they are written.

        Waits first for the previous checkpoint, if it is still being written.

        Raises
        ------
        NotStorable
            A value has a type that files cannot hold. This is a TypeError; the message has the path of the value.
        """
        state = self._attached()
        snapshot, rank, size = state.snapshot(), session.rank(), session.size()
        encoder = Encoder()
        tree = {"alike": encoder.encode(snapshot.alike, "alike")}
        count, part = share_of(encoder.tensors, rank, size)
        if rank == 0:
            encoder_of_rank_0 = Encoder()
            tree[_OF_RANK_0] = encoder_of_rank_0.encode(snapshot.of_rank_0, _OF_RANK_0)
            part |= encoder_of_rank_0.tensors
        metadata: dict[str, Any] = {"number": state.commit_number, "ranks": size, "tree": tree if rank == 0 else None}
        self._join()
        if rank < count:
            arguments = (state.commit_number, state.sync_id, rank, count, Shard(metadata, part))
            self._writer = threading.Thread(target=self._write, args=arguments, name="hvd-checkpoint")
            self._writer.start()

    def wait(self) -> None:
        """Block until this rank has written its shard.

        Raises
        ------
        OSError
            Writing failed; the message names the file.
        """
        self._join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def load(self) -> int:
        """Load the newest complete checkpoint in this process, and return its number; 0 without a checkpoint.

        Raises
        ------
        StateLost
            There are checkpoints, but none can be used. Training does not restart from the beginning by mistake.
        """
        damages = []
        for stored in folders.stored(self.directory):
            if not stored.complete:
                continue
            try:
                snapshot, number, ranks = _read(stored)
            except Damaged as error:
                damages.append(str(error))
                _LOG.warning("checkpoint: %s. %s", error, PREVIOUS)
                continue
            self._attached().load_snapshot(snapshot, number)
            self.resumed = stored.path
            _LOG.warning("checkpoint: resumed from %s: commit %d, written by %d ranks", stored.path, number, ranks)
            return number
        if damages:
            raise StateLost(UNUSABLE.format(count=len(damages), folder=self.directory) + " ".join(damages))
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
        """Warn if an older checkpoint is incomplete, though the other ranks have already finished with it."""
        if len(self._written) < _REMEMBERED:
            return
        for stored in folders.stored(self.directory):
            if stored.path == self._written[0] and not stored.complete:
                _LOG.warning(
                    "checkpoint: %s has only the shards %s. Others could not be written, or have been elsewhere: the "
                    "folder has to be one that all hosts share.",
                    stored.path,
                    ", ".join(path.name for path in stored.shards),
                )
                remove_folder(stored.path)

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _attached(self) -> State:
        if self._state is None:
            raise ValueError("The checkpoint has no state yet: call its attach(state) first.")
        return self._state


def _check_snapshot_is_complete(state: State) -> None:
    """Raise NotImplementedError for a class that overrides ``save`` but inherits ``snapshot``."""
    state.snapshot()
    saving, snapshotting = (
        next(cls for cls in type(state).__mro__ if name in vars(cls)) for name in ("save", "snapshot")
    )
    if not issubclass(snapshotting, saving):
        raise NotImplementedError(
            f"{saving.__name__} has a save() of its own, and its snapshot() is that of {snapshotting.__name__}: a "
            "checkpoint would lack what only save() knows. Give it snapshot() and load_snapshot()."
        )


def share_of(tensors: dict[str, Tensor], rank: int, ranks: int) -> tuple[int, dict[str, Tensor]]:
    """Assign tensors to writers; return the number of writers and this rank's share.

    The assignment is greedy: largest tensor first, each to the writer with the fewest bytes.

    >>> share_of({}, 0, 4)
    (1, {})
    """
    count = max(1, min(ranks, sum(tensor.data.nbytes for tensor in tensors.values()) // SMALLEST_SHARD))
    loads = [0] * count
    share = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].data.nbytes, item[0])):
        writer = loads.index(min(loads))
        loads[writer] += tensor.data.nbytes
        if writer == rank:
            share[name] = tensor
    return count, share


def _read(stored: folders.Stored) -> tuple[Snapshot, int, int]:
    parts = [shards.read(path) for path in stored.shards]
    first = parts[0].metadata
    tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
    numbers = {part.metadata.get("number") for part in parts}
    if numbers != {stored.number}:
        raise Damaged(f"{stored.path} is damaged: its shards are of commits {sorted(map(str, numbers))}")
    try:
        tree = first["tree"]
        snapshot = Snapshot(decode(tree["alike"], tensors), decode(tree[_OF_RANK_0], tensors))
        return snapshot, stored.number, int(first["ranks"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{stored.shards[0]} is damaged: {error}") from None
