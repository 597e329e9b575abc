"""What is kept through a failure: saved now and then, restored after a failure, made equal on all ranks.

Words.
  commit   save, on every rank at the same point of the program; a failure goes back to the last one
  sync     take rank 0's values on every rank, which is a commit too
  reset    the ranks have met again, and there may be more or fewer of them
  tracked  given to the state by name: saved, restored and synced; other attributes are not
"""

from __future__ import annotations

import copy
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from hvd_kernel.core import ops, session
from hvd_kernel.elastic.updates import HostUpdateResult
from hvd_kernel.errors import HostsUpdatedInterrupt


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
        self._host_messages = queue.SimpleQueue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Take note that hosts have changed. Any thread; ``check_host_updates`` acts on it."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save, and look for hosts that have changed. Collective: best right after an optimizer's step.

        Raises
        ------
        HostsUpdatedInterrupt
            Hosts have changed: on all ranks together. ``elastic.run`` handles it.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise where rank 0 has heard that hosts have changed. Collective; cheaper than ``commit``.

        Raises
        ------
        HostsUpdatedInterrupt
            Hosts have changed: on all ranks together, because all take rank 0's word.
        """
        before, latest, changes = self._bcast_object(self._heard())
        self._last_updated_timestamp = latest
        if latest > before:
            raise HostsUpdatedInterrupt(changes == HostUpdateResult.removed)

    def _heard(self) -> tuple[float, float, int]:
        """Return the time of the last update that was acted on, of the latest, and what has changed in between."""
        latest, changes = self._last_updated_timestamp, HostUpdateResult.no_update
        while not self._host_messages.empty():
            timestamp, change = self._host_messages.get()
            if timestamp > self._last_updated_timestamp:
                latest, changes = max(latest, timestamp), changes | change
        return self._last_updated_timestamp, latest, changes

    @abstractmethod
    def save(self) -> None:
        """Keep the values of now."""

    @abstractmethod
    def restore(self) -> None:
        """Go back to the values that were kept."""

    @abstractmethod
    def sync(self) -> None:
        """Take rank 0's values. Collective."""

    def reset(self) -> None:  # noqa: B027 - a state that does not depend on the ranks has nothing to do
        """Fit to the ranks that there are now; ``sync`` comes after this."""


class ObjectState(State):
    """Plain Python values, tracked under the names that they are given by: ``ObjectState(epoch=0, history=[])``.

    Unlike Horovod's it keeps copies: what is changed in place after a commit is undone too.

    Parameters
    ----------
    bcast_object, get_rank
        As in ``State``.
    **kwargs
        Values by name: attributes of the state. They can be copied (``copy.deepcopy``) and pickled.

    Raises
    ------
    TypeError
        A value cannot be copied; from ``commit`` too.

    Examples
    --------
    >>> state = hvd.elastic.ObjectState(epoch=0, history=[])
    >>> state.epoch, state.history = 1, [0.5]
    >>> state.commit()
    >>> state.history.append(0.25)
    >>> state.restore()
    >>> state.epoch, state.history
    (1, [0.5])
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any] = ops.broadcast_object,
        get_rank: Callable[[], int] = session.rank,
        **kwargs: Any,
    ) -> None:
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)
        self._saved_state: dict[str, Any] = {}
        for name, value in kwargs.items():
            setattr(self, name, value)
        self._saved_state = copy.deepcopy(kwargs)

    def save(self) -> None:
        """Copy the tracked values."""
        self._saved_state = copy.deepcopy(self._now())

    def restore(self) -> None:
        """Give the tracked names copies of what was saved: it may be needed again."""
        self._take(copy.deepcopy(self._saved_state))

    def sync(self) -> None:
        """Take rank 0's values of now, and save them. Collective."""
        if self._saved_state:
            self._take(self._bcast_object(self._now()))
            ObjectState.save(self)

    def _now(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved_state}

    def _take(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)
