"""Worker of an elastic driver, which this process is: it asks for its place, and meets the others there."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import sys
from collections.abc import Callable, Mapping

from hvd_kernel.core.driver.channel import DriverChannel, since
from hvd_kernel.core.driver.channel import driver as channel_to_driver
from hvd_kernel.errors import HorovodInternalError
from hvd_kernel.frameworks.frontends import FRONTENDS
from hvd_kernel.processes.ports import ReservedPort
from hvd_kernel.protocol.elastic import GENERATION, Place, Ready, Removed

Join = Callable[[Place, Mapping[int, int]], None]

_REASON_CHARS = 300
_LOG = logging.getLogger("hvd_kernel")


class ElasticWorker:
    """Its place, and why it leaves it."""

    def __init__(self, channel: DriverChannel) -> None:
        self.channel = channel
        self.place: Place | None = None
        """The newest; its ``before`` is of the generation in which this worker last was."""
        self._port = ReservedPort()  # where the ranks meet if this worker becomes rank 0
        self._has_joined = True  # in the generation of its place
        self._reason: str | None = None  # why that has failed; None: it has not
        self._step = 0

    def leave(self, reason: str | None, step: int | None = None) -> None:
        """Have the driver told, at the next question, why the generation was left, and of the state's last commit."""
        self._reason = reason
        self._step = self._step if step is None else step

    def rendezvous(self, join: Join, pidfds: Mapping[int, int], patience_s: float) -> None:
        """Ask for a place and meet the others there, again and again until all have met.

        Parameters
        ----------
        join
            Called with the place and, by rank, descriptors that become readable when there is no use in waiting.
        pidfds
            Handles of processes, by their ranks in the generation in which this worker last was.
        patience_s
            Seconds that the driver may take for an answer.

        Raises
        ------
        SystemExit
            With 0: the worker is not part of the job any more.
        HorovodInternalError
            The driver has not answered, or is gone.
        Exception
            What ``join`` raises but for a HorovodInternalError, which the driver is told of.
        """
        while True:
            place = self._next_place(patience_s)
            try:
                join(place, self._watched(place, pidfds))
            except HorovodInternalError as error:
                self.leave(f"{type(error).__name__}: {error}")
            except Exception:
                if not self.channel.is_over():
                    raise  # else it is of a generation that was to be and is not
            else:
                self._has_joined = not self.channel.is_over()
                if self._has_joined:
                    self._port.release()
                    return

    def _next_place(self, patience_s: float) -> Place:
        generation = self.place.generation if self.place is not None else 0
        if generation == 0:
            _import_what_comes_later()
        failed, reason = self._reason is not None, (self._reason or "")[:_REASON_CHARS]
        answer = self.channel.ask_place(Ready(generation, failed, reason, self._step, self._port.take()), patience_s)
        if isinstance(answer, Removed):
            _LOG.info("this rank leaves the job: %s", answer.why)
            raise SystemExit(0)
        place = answer if self._has_joined else since(self.place, answer)
        assert isinstance(place, Place)
        self.place, self._has_joined, self._reason = place, False, None
        os.environ.update(variables(place))
        return place

    def _watched(self, place: Place, pidfds: Mapping[int, int]) -> dict[int, int]:
        seen = {rank: pidfds[old] for rank, old in enumerate(place.before) if old in pidfds}
        return seen | {place.rank: self.channel.fileno()}


def _import_what_comes_later() -> None:
    """Import what would be imported while the other ranks wait: they train on until this one is ready."""
    for module in [each for frontend in FRONTENDS if frontend.package in sys.modules for each in frontend.later]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def variables(place: Place) -> dict[str, str]:
    """Return what a place means for the environment, as a launcher would have said it.

    >>> variables(Place(3, 1, 2, 0, 1, 1, 2, "b", "10.0.0.1", 4000, "secret"))["HOROVOD_RANK"]
    '1'
    """
    ranks = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    said = {f"HOROVOD_{name.upper()}": str(getattr(place, name)) for name in ranks}
    return said | {"HOROVOD_HOSTNAME": place.hostname, "HOROVOD_ELASTIC": "1", GENERATION: str(place.generation)}


@functools.cache
def worker() -> ElasticWorker:
    """Return the one that this process is."""
    return ElasticWorker(channel_to_driver())
