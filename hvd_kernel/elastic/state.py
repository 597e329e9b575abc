"""Elastic state, which survives a failure: saved at commits, restored after a failure, synced across all ranks.

Terms.
  commit   a save on every rank at the same point of the program; a failure returns to the last one
  step     an optimizer step that a StepGuard has voted for (elastic/guard.py): a failure keeps it without a save
  number   count of commits and steps that the values include; if ranks differ, the highest has the newest values
  sync     load one rank's values on every rank, by default rank 0's; it counts as a commit
  reset    the ranks have joined again, possibly in another number
"""

from __future__ import annotations

import queue
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from hvd_kernel.core import ops, session
from hvd_kernel.elastic.updates import HostUpdateResult
from hvd_kernel.errors import HostsUpdatedInterrupt, StateLost
from hvd_kernel.protocol import notebook


class Snapshot(NamedTuple):
    """Values saved by the last commit, as trees of values, arrays and tensors that are not modified afterwards."""

    alike: dict[str, Any]  # the same on all ranks, so a checkpoint splits them over ranks
    of_rank_0: dict[str, Any]  # values that may differ between ranks: those of rank 0 are stored


class State(ABC):
    """Base class of elastic states, with Horovod's methods; a subclass defines save, restore and sync.

    Parameters
    ----------
    bcast_object
        Function of an object that returns rank 0's object on all ranks.
    get_rank
        Function without arguments that returns this rank's number.

    Raises
    ------
    TypeError
        The class is abstract.

    Examples
    --------
    >>> class Counter(hvd.elastic.State):
    ...     value = saved = 0
    ...     def save(self):
    ...         self.saved = self.value
    ...     def restore(self):
    ...         self.value = self.saved
    ...     def sync(self):
    ...         self.value = hvd.broadcast_object(self.value)
    ...         self.save()
    >>> counter = Counter()
    >>> counter.value = 1
    >>> counter.commit()
    >>> counter.value = 2
    >>> counter.restore()
    >>> counter.value
    1
    """

    root = 0
    """The rank whose values ``sync`` loads; may differ from 0 only inside ``sync_from``."""

    sync_id = "0"
    """Identifier of the last ``sync_from``, the same on all ranks: distinguishes attempts at the same commit."""

    _number = 0  # class attributes, so that a subclass whose __init__ does not call ours has them too
    _saved_number = 0  # of the values that ``restore`` restores
    _is_whole = True  # False inside a step or a sync, when the values belong neither to this number nor to the next
    _commit_callbacks: tuple[Callable[[int, int], Any], ...] = ()
    _source: Callable[[], Any] | None = None

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = ops.broadcast_object,
        get_rank: Callable[[], int] = session.rank,
    ) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.SimpleQueue[tuple[float, int]] = queue.SimpleQueue()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Call functions after every reset, to adapt to the number of ranks, for example the learning rate."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Discard recorded host updates, and adapt to the ranks of now."""
        # With a driver this was done when the new place arrived; updates recorded since then are not in the place.
        if not (session.has_driver() or notebook.has_membership()):
            self.forget_host_updates()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Record that hosts have changed. Any thread; ``check_host_updates`` raises later."""
        self._host_messages.put((timestamp, update_res))

    def forget_host_updates(self) -> None:
        """Discard recorded host updates. Any thread."""
        with suppress(queue.Empty):
            while True:
                self._host_messages.get_nowait()

    def commit(self) -> None:
        """Save, and check for changed hosts. Collective: best right after an optimizer's step.

        Raises
        ------
        HostsUpdatedInterrupt
            Hosts have changed: on all ranks together. ``elastic.run`` handles it.
        """
        self.save()
        before, self._number = self._saved_number, self._number + 1
        self._saved_number, self._is_whole = self._number, True
        for callback in self._commit_callbacks:
            callback(before, self._number)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise if any rank has been notified that hosts have changed. Collective; cheaper than ``commit``.

        Raises
        ------
        HostsUpdatedInterrupt
            Hosts have changed: on all ranks together.
        """
        latest, removed, added = map(float, ops.allreduce(self._recorded_updates(), op=ops.Max, name="elastic.hosts"))
        if latest:
            self.agree()  # before ranks leave
            self._last_updated_timestamp = max(latest, self._last_updated_timestamp)
            raise HostsUpdatedInterrupt(skip_sync=bool(removed and not added))

    def _recorded_updates(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the time of the last change of hosts, 0 without any, and whether hosts were removed, and added."""
        latest, changes = 0.0, HostUpdateResult.no_update
        with suppress(queue.Empty):
            while True:
                timestamp, change = self._host_messages.get_nowait()
                if timestamp > self._last_updated_timestamp:
                    latest, changes = max(latest, timestamp), changes | change
        flags = [bool(changes & change) for change in (HostUpdateResult.removed, HostUpdateResult.added)]
        return np.array([latest, *flags], dtype=np.float64)

    @abstractmethod
    def save(self) -> None:
        """Save the current values."""

    @abstractmethod
    def restore(self) -> None:
        """Restore the values that were saved."""

    @abstractmethod
    def sync(self) -> None:
        """Load the values of rank ``root``, and save them. Collective."""

    def reset(self) -> None:  # noqa: B027 - a state that does not depend on the ranks has nothing to do
        """Adapt to the current ranks; ``sync`` follows."""

    # Used by elastic.run, StepGuard and Checkpoint; a subclass need not know of it.

    @property
    def commit_number(self) -> int:
        """Number of commits and voted steps in the values that a failure now would restore."""
        return self._number if self._is_whole else self._saved_number

    def register_commit_callbacks(self, callbacks: Iterable[Callable[[int, int], Any]]) -> None:
        """Call functions after every save of a commit, with the number of the previous commit and its own."""
        self._commit_callbacks = (*self._commit_callbacks, *callbacks)

    def register_source(self, source: Callable[[], Any]) -> None:
        """Set the function that loads values on the root before a job's first sync, if no rank has trained."""
        self._source = source

    @property
    def resumes(self) -> bool:
        """Whether the state is loaded from files if no rank has trained."""
        return self._source is not None

    def recover(self) -> None:
        """Recover from a failure: keep the last step if it is whole, otherwise restore the last commit."""
        if self._is_whole and self._number > self._saved_number:
            self.undo_step()
        else:
            self.restore()
            self._number, self._is_whole = self._saved_number, True

    def sync_from(self, root: int | None = None, fresh: Collection[int] = ()) -> None:
        """Load the values of one rank on all ranks, with its number of commits. Collective.

        Parameters
        ----------
        root
            The rank, the same on all ranks; None: the first one with the highest ``commit_number``.
        fresh
            The ranks whose processes are new in the job.

        Raises
        ------
        StateLost
            The root is new and other ranks are not: it would overwrite what they have trained. Or the values with
            which the job starts could not be loaded.
        """
        everyone = ops.allgather_object((self.commit_number, secrets.token_hex(4)), name="elastic.numbers")
        numbers = [number for number, _ in everyone]
        if root is None:
            root = numbers.index(max(numbers))
        if root in fresh and len(set(fresh)) < len(numbers):
            raise StateLost(
                f"Rank {root}, whose values all ranks would take, is new in the job and has trained nothing, "
                f"while others have: they would be lost. Take them from a rank that is none of {sorted(set(fresh))}."
            )
        number = numbers[root] or self._load(root)
        self._is_whole = self._is_whole and number == self._number  # otherwise a failure in the sync leaves a mixture
        self.root = root
        try:
            self.sync()
        finally:
            del self.root
        self._number = self._saved_number = number
        self._is_whole, self.sync_id = True, everyone[0][1]

    def _load(self, root: int) -> int:
        """Load the root's initial values from the source, if it has one; return their number on all ranks."""
        failure: Exception | None = None
        if session.rank() == root and self._source is not None:
            try:
                self._source()
            except Exception as error:  # noqa: BLE001 - broadcast below to the waiting ranks
                failure = error
        outcome = self.commit_number, failure and f"{type(failure).__name__}: {failure}"
        number, lost = ops.broadcast_object(outcome, root, name="elastic.loaded")
        if lost:
            raise StateLost(f"Rank {root} could not load what the job begins with: {lost}") from failure
        return int(number)

    def agree(self) -> None:
        """Share with all ranks what only one rank knows, such as the samples that it has processed. Collective."""
        ops.barrier()

    def begin_step(self) -> None:
        """Vote for the step: return when all ranks have called this, each with all that the step needs. Collective.

        Raises
        ------
        HorovodInternalError
            A rank has failed before it. This rank's values are still those before the step.
        """
        self.agree()
        self._is_whole = False

    def end_step(self) -> None:
        """Count the step, and keep its values."""
        self.keep_step()
        self._number += 1
        self._is_whole = True

    def keep_step(self) -> None:  # noqa: B027 - a state of the user's own is not undone
        """Keep the values that a failing step could change; not those that only an optimizer's step changes."""

    def undo_step(self) -> None:  # noqa: B027 - as keep_step
        """Restore the values that ``keep_step`` has kept."""

    def snapshot(self) -> Snapshot:
        """Return the values that the last commit has saved, for a checkpoint.

        Raises
        ------
        NotImplementedError
            This class does not define its snapshot.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no snapshot(): a checkpoint stores ObjectState and its kinds"
        )

    def load_snapshot(self, snapshot: Snapshot, number: int) -> None:
        """Load the values of a checkpoint, as the commit of that number."""
        raise NotImplementedError(f"{type(self).__name__} has no load_snapshot()")
