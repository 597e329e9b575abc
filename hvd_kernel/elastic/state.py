"""Elastic state, kept through a failure: saved now and then, restored after a failure, made equal on all ranks.

Terms.
  commit   save, on every rank at the same point of the program; a failure goes back to the last one
  step     one that a StepGuard has voted for (elastic/guard.py): a failure keeps it, though nobody has saved it
  number   how many commits and steps the values have seen; where ranks differ, the highest has the newest values
  sync     take one rank's values on every rank, which is a commit too: rank 0's, where nobody names another one
  reset    the ranks have met again, and there may be more or fewer of them
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
from hvd_kernel.protocol import cell_ranks


class Snapshot(NamedTuple):
    """What a state keeps since its last commit, as trees of values, arrays and tensors that nobody changes any more."""

    alike: dict[str, Any]  # the same on all ranks: a checkpoint shares it out
    own: dict[str, Any]  # what may differ: rank 0's counts


class State(ABC):
    """What every state does, with Horovod's verbs; a subclass says how to save, restore and sync.

    Parameters
    ----------
    bcast_object
        How rank 0's value of an object reaches all ranks; it is called with the object.
    get_rank
        How this rank's number is found, without arguments.

    Raises
    ------
    TypeError
        It is abstract.

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
    """The rank whose values ``sync`` takes: another than 0 within ``sync_from``."""

    sync_id = "0"
    """Of the last ``sync_from``, the same on all its ranks: tells attempts at the same commit apart."""

    _number = 0  # attributes of the class, so that one whose __init__ does not call ours has them too
    _saved_number = 0  # of what ``restore`` goes back to
    _is_whole = True  # False: within a step, or a sync; the values are of neither the one number nor the next
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
        """Have these called after every reset, for what depends on the number of ranks: a learning rate, say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Forget what was heard of hosts, and fit what depends on the ranks."""
        if not (
            session.has_driver() or cell_ranks.is_provided()
        ):  # else it was done with the places: since then it is news
            self.forget_host_updates()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Take note that hosts have changed. Any thread; ``check_host_updates`` acts on it."""
        self._host_messages.put((timestamp, update_res))

    def forget_host_updates(self) -> None:
        """Forget what was heard of hosts. Any thread."""
        with suppress(queue.Empty):
            while True:
                self._host_messages.get_nowait()

    def commit(self) -> None:
        """Save, and look for hosts that have changed. Collective: best right after an optimizer's step.

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
        """Raise where any rank has heard that hosts have changed. Collective; cheaper than ``commit``.

        Raises
        ------
        HostsUpdatedInterrupt
            Hosts have changed: on all ranks together.
        """
        latest, removed, added = map(float, ops.allreduce(self._heard(), op=ops.Max, name="elastic.hosts"))
        if latest:
            self.agree()  # while those who leave are still there
            self._last_updated_timestamp = max(latest, self._last_updated_timestamp)
            raise HostsUpdatedInterrupt(skip_sync=bool(removed and not added))

    def _heard(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return when hosts have changed, 0 if they have not, and whether some were removed or added."""
        latest, changes = 0.0, HostUpdateResult.no_update
        with suppress(queue.Empty):
            while True:
                timestamp, change = self._host_messages.get_nowait()
                if timestamp > self._last_updated_timestamp:
                    latest, changes = max(latest, timestamp), changes | change
        flags = [bool(changes & each) for each in (HostUpdateResult.removed, HostUpdateResult.added)]
        return np.array([latest, *flags], dtype=np.float64)

    @abstractmethod
    def save(self) -> None:
        """Keep the values of now."""

    @abstractmethod
    def restore(self) -> None:
        """Go back to the values that were kept."""

    @abstractmethod
    def sync(self) -> None:
        """Take the values of rank ``root``, and save them. Collective."""

    def reset(self) -> None:  # noqa: B027 - a state that does not depend on the ranks has nothing to do
        """Fit to the ranks that there are now; ``sync`` comes after this."""

    # What elastic.run, StepGuard and Checkpoint ask of a state; a subclass need not know of it.

    @property
    def commit_number(self) -> int:
        """How many commits and voted steps the values have seen that a failure now would go back to."""
        return self._number if self._is_whole else self._saved_number

    def register_commit_callbacks(self, callbacks: Iterable[Callable[[int, int], Any]]) -> None:
        """Have these called after every save of a commit, with the number of the commit before it and its own."""
        self._commit_callbacks = (*self._commit_callbacks, *callbacks)

    def register_source(self, source: Callable[[], Any]) -> None:
        """Have this called on the root before the first sync of a job in which no rank has trained: it loads values."""
        self._source = source

    @property
    def resumes(self) -> bool:
        """Whether it begins from files where no rank has trained."""
        return self._source is not None

    def recover(self) -> None:
        """After a failure: keep the last step where it is whole, and go back to the last commit where it is not."""
        if self._is_whole and self._number > self._saved_number:
            self.undo_step()
        else:
            self.restore()
            self._number, self._is_whole = self._saved_number, True

    def sync_from(self, root: int | None = None, fresh: Collection[int] = ()) -> None:
        """Take the values of one rank on all ranks, and its number of commits. Collective.

        Parameters
        ----------
        root
            The rank, the same on all of them; None: of those with the highest ``commit_number`` the first.
        fresh
            The ranks whose processes are new in the job.

        Raises
        ------
        StateLost
            The root is one of them, and others are not: it would overwrite what they have trained. Or what the job
            should begin with could not be loaded.
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
        self._is_whole = self._is_whole and number == self._number  # else a failure in here leaves a mixture
        self.root = root
        try:
            self.sync()
        finally:
            del self.root
        self._number = self._saved_number = number
        self._is_whole, self.sync_id = True, everyone[0][1]

    def _load(self, root: int) -> int:
        """Have the root load what the job begins with, where there is a source; return its number on all ranks."""
        failure: Exception | None = None
        if session.rank() == root and self._source is not None:
            try:
                self._source()
            except Exception as error:  # noqa: BLE001 - the others wait: they are told
                failure = error
        told = self.commit_number, failure and f"{type(failure).__name__}: {failure}"
        number, lost = ops.broadcast_object(told, root, name="elastic.loaded")
        if lost:
            raise StateLost(f"Rank {root} could not load what the job begins with: {lost}") from failure
        return int(number)

    def agree(self) -> None:
        """Let all ranks know what only one of them knows, as which samples it has processed. Collective."""
        ops.barrier()

    def begin_step(self) -> None:
        """Vote: return when all ranks have come here, which they do when they have all that the step needs. Collective.

        Raises
        ------
        HorovodInternalError
            One of them has not: it has failed. This rank's values are still those before the step.
        """
        self.agree()
        self._is_whole = False

    def end_step(self) -> None:
        """Keep the values of now as one step more."""
        self.keep_step()
        self._number += 1
        self._is_whole = True

    def keep_step(self) -> None:  # noqa: B027 - what a step changes in a state of the user's own stays as it is
        """Keep what a step that fails could change; not what only an optimizer's step changes."""

    def undo_step(self) -> None:  # noqa: B027 - as keep_step
        """Go back to what ``keep_step`` has kept."""

    def snapshot(self) -> Snapshot:
        """Return what the last commit has kept, for a checkpoint.

        Raises
        ------
        NotImplementedError
            This class does not say what it keeps.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no snapshot(): a checkpoint stores ObjectState and its kinds"
        )

    def load_snapshot(self, snapshot: Snapshot, number: int) -> None:
        """Take what a checkpoint has stored, as the commit of that number."""
        raise NotImplementedError(f"{type(self).__name__} has no load_snapshot()")
