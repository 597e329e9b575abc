"""Worker of an elastic job, which this process is: its channel to the driver, and its place in each generation.

The agent of the host carries the messages (core/agent_channel.py). Their meaning: protocol/elastic.py. For the spare
processes of the host, the worker also reports to the agent what it has imported.

Terms.
  answer   a Place, or a Removed
  pushed   an answer without a request: the generation that was planned is cancelled, or the current one is over
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hvd_kernel.core import agent_channel
from hvd_kernel.errors import HorovodInternalError, HvdTimeout
from hvd_kernel.frameworks.frontends import FRONTENDS
from hvd_kernel.processes import rank_channel
from hvd_kernel.processes.ports import ReservedPort
from hvd_kernel.protocol import elastic
from hvd_kernel.protocol.elastic import GENERATION, FromWorker, HostsUpdated, Lost, Place, Ready, Removed
from hvd_kernel.settings import lookup, torchrun

Answer = Place | Removed
Join = Callable[[Place, Mapping[int, int]], None]

_GONE = (
    f"the driver of this elastic job cannot be reached ({rank_channel.VARIABLE} names its agent on this host): it has "
    "ended, or this process is a child of a rank. Start the job with hvdrun."
)
_REASON_CHARS = 300
_OURS = ("hvd_kernel", "horovod")
_START = ("mpi4py", "pycuda")
"""Packages whose import starts MPI, or a context on a device."""
_NOT_THE_PROGRAMS = ("HVD_", "HOROVOD_")
_LOG = logging.getLogger("hvd_kernel")


class DriverChannel:
    """Requests to the driver, and the latest state that it has sent to this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._answer: Answer | None = None  # the newest, until ``request_place`` returns it
        self._accepted = 0  # the newest generation that ``request_place`` has returned
        self._lost = 0  # the newest generation that has lost a worker
        self._is_requesting = False
        self._is_gone = False
        self._pushed: list[Callable[[str], None]] = []
        self._placed: list[Callable[[], None]] = []
        self._hosts_updated: list[Callable[[HostsUpdated], None]] = []
        self._readable = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def on_hosts_updated(self, call: Callable[[HostsUpdated], None]) -> None:
        """Call a function, in a thread, whenever the driver reports that hosts were added or removed."""
        self._hosts_updated.append(call)

    def on_placed(self, call: Callable[[], None]) -> None:
        """Call a function, in a thread, for every new place; a place supersedes all earlier host updates."""
        self._placed.append(call)

    def on_pushed(self, call: Callable[[str], None]) -> None:
        """Call a function with the reason, in a thread, when the generation is over, before any answer is returned."""
        self._pushed.append(call)

    def fileno(self) -> int:
        """Return a descriptor that is readable when waiting for the other ranks is useless: see ``is_over``."""
        return self._readable

    def is_over(self) -> bool:
        """Return whether the last accepted generation is over: it has lost a worker, or another answer has arrived."""
        return self._answer is not None or 0 < self._accepted <= self._lost

    def request_place(self, ready: Ready, patience_s: float) -> Answer:
        """Report that this worker is ready, and wait for its place; return a pushed answer without a request.

        Raises
        ------
        HvdTimeout
            No answer has arrived in time.
        HorovodInternalError
            The driver has ended.
        """
        with self._changed:
            if self._answer is None:
                self.send(ready)
            self._is_requesting = True
            try:
                self._changed.wait_for(lambda: self._answer is not None or self._is_gone, patience_s)
            finally:
                self._is_requesting = False
            answer, self._answer = self._answer, None
            if answer is None:
                raise HorovodInternalError(_GONE) if self._is_gone else _late(patience_s)
            self._clear_readable()
            if isinstance(answer, Place):
                self._accepted = answer.generation
                if self.is_over():
                    os.eventfd_write(self._readable, 1)
            return answer

    def send(self, message: FromWorker) -> None:
        """Send a message to the driver. Any thread."""
        if not agent_channel.is_connected():
            self._is_gone = True
        agent_channel.send(elastic.encode(message))

    def receive(self, data: bytes) -> None:
        """Handle a message that the agent relayed; b"" means that the agent has ended."""
        match elastic.to_worker(data) if data else None:
            case HostsUpdated() as update:
                for call in [*self._hosts_updated]:
                    call(update)
            case Place(generation=generation) if generation <= self._accepted:
                return  # of a generation that is over
            case Place() | Removed() as answer:
                self._keep(answer)
            case Lost() as lost:
                self._lose(lost)
            case None:
                with self._changed:
                    self._is_gone = True
                    self._changed.notify_all()

    def _clear_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._readable)

    def _lose(self, lost: Lost) -> None:
        with self._changed:
            was_over = self.is_over()
            self._lost = max(self._lost, lost.generation)
            if self.is_over() and not (was_over or self._is_requesting):
                os.eventfd_write(self._readable, 1)
                for call in self._pushed:
                    call(f"a rank has failed: {lost.reason}")

    def _keep(self, answer: Answer) -> None:
        for placed in self._placed if isinstance(answer, Place) else ():
            placed()
        with self._changed:
            if self._answer is None:
                os.eventfd_write(self._readable, 1)
            self._answer = since(self._answer, answer)
            self._changed.notify_all()
            for call in () if self._is_requesting else self._pushed:
                call("it has been given a place in another generation of the job")


def since(older: Answer | None, newer: Answer) -> Answer:
    """Return the newer of two places, with ``before`` mapped to the generation before the older one.

    Examples
    --------
    Rank 1 of a generation that was cancelled had been rank 3 before; one rank was new in it, and one in the next.

    >>> of = lambda generation, *before: Place(generation, 0, 3, 0, 3, 0, 1, "", "", 1, "", before=before)
    >>> since(of(2, 0, 3, -1), of(3, 1, 2, -1)).before
    (3, -1, -1)
    """
    if not isinstance(older, Place) or not isinstance(newer, Place):
        return newer
    ranks = tuple(older.before[rank] if 0 <= rank < len(older.before) else -1 for rank in newer.before)
    return msgspec.structs.replace(newer, before=ranks)


def _late(patience_s: float) -> HvdTimeout:
    return HvdTimeout(
        f"the driver of this elastic job has given this rank no place within {patience_s:g} s. HVD_ELASTIC_TIMEOUT (or "
        "HOROVOD_ELASTIC_TIMEOUT) sets the time."
    )


@functools.cache
def driver() -> DriverChannel:
    """Return the driver channel of this process."""
    return DriverChannel()


class ElasticWorker:
    """Place of this process in the job, and the reason why it leaves it."""

    def __init__(self, channel: DriverChannel) -> None:
        self.channel = channel
        self.place: Place | None = None
        """The newest place; its ``before`` refers to the last generation that this worker joined."""
        self._port = ReservedPort()  # for the rendezvous if this worker becomes rank 0
        self._has_joined = True  # the generation of its place
        self._reason: str | None = None  # why that generation has failed; None: it has not
        self._step = 0

    def leave(self, reason: str | None, step: int | None = None) -> None:
        """Send, with the next place request, why this worker left its generation and its last commit."""
        self._reason = reason
        self._step = self._step if step is None else step

    def rendezvous(self, join: Join, pidfds: Mapping[int, int], patience_s: float) -> None:
        """Request places and join the other ranks there, until a generation is complete.

        Parameters
        ----------
        join
            Called with the place and, by rank, descriptors that become readable when waiting is useless.
        pidfds
            Process handles, by rank in the last generation that this worker joined.
        patience_s
            Seconds that the driver may take for an answer.

        Raises
        ------
        SystemExit
            With status 0: the worker is no longer part of the job.
        HorovodInternalError
            The driver has not answered, or has ended.
        Exception
            Any other error of ``join``. A HorovodInternalError of ``join`` is reported to the driver instead.
        """
        while True:
            place = self._next_place(patience_s)
            try:
                join(place, self._watched(place, pidfds))
            except HorovodInternalError as error:
                self.leave(f"{type(error).__name__}: {error}")
            except Exception:
                if not self.channel.is_over():
                    raise  # otherwise the generation was cancelled while the ranks joined
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
        answer = self.channel.request_place(
            Ready(generation, failed, reason, self._step, self._port.take()), patience_s
        )
        if isinstance(answer, Removed):
            _LOG.info("this rank leaves the job: %s", answer.reason)
            raise SystemExit(0)
        place = answer if self._has_joined else since(self.place, answer)
        assert isinstance(place, Place)
        self.place, self._has_joined, self._reason = place, False, None
        os.environ.update(variables_of(place))
        return place

    def _watched(self, place: Place, pidfds: Mapping[int, int]) -> dict[int, int]:
        peers = {rank: pidfds[old] for rank, old in enumerate(place.before) if old in pidfds}
        return peers | {place.rank: self.channel.fileno()}


def _import_what_comes_later() -> None:
    """Import modules now that would otherwise be imported while the other ranks wait; until then they train."""
    for module in [name for frontend in FRONTENDS if frontend.package in sys.modules for name in frontend.later]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def variables_of(place: Place) -> dict[str, str]:
    """Return a place as the environment variables that a launcher would set.

    >>> variables_of(Place(3, 1, 2, 0, 1, 1, 2, "b", "10.0.0.1", 4000, "secret"))["HOROVOD_RANK"]
    '1'
    """
    names = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")
    numbers = {f"HOROVOD_{name.upper()}": str(getattr(place, name)) for name in names}
    return numbers | {"HOROVOD_HOSTNAME": place.hostname, "HOROVOD_ELASTIC": "1", GENERATION: str(place.generation)}


@functools.cache
def worker() -> ElasticWorker:
    """Return the elastic worker of this process."""
    return ElasticWorker(driver())


def report_imports() -> None:
    """Report this process's imports to the agent, if it keeps spares, which then import the same modules in advance.

    The variables that the program has set before its imports are reported too: ``KERAS_BACKEND`` counts at the import.
    """
    if int(lookup.value("HVD_SPARES", os.environ)):
        agent_channel.send_to_agent(rank_channel.imports({"modules": imported_modules(), "variables": set_variables()}))


def imported_modules() -> list[str]:
    """Return the names of imported modules that are installed, in the order in which their imports began.

    Modules of the program itself are left out: importing them may have any effect, and they are few.
    """
    folders = (*{os.path.join(folder, "") for folder in _folders()},)  # noqa: PTH118 - ends with a slash
    main = getattr(sys.modules["__main__"].__spec__, "name", None)
    return [name for name in [*sys.modules] if name != main and _is_installed(name, folders)]


def _folders() -> list[str]:
    paths = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [path for path in (*paths, *site.getsitepackages(), site.getusersitepackages()) if path]


def _is_installed(name: str, folders: tuple[str, ...]) -> bool:
    package = name.partition(".")[0]
    if package in _START or package == "__main__":
        return False
    spec = getattr(sys.modules.get(name), "__spec__", None)
    origin = getattr(spec, "origin", None)
    if getattr(spec, "name", None) != name or not isinstance(origin, str):
        return False
    return package in _OURS or origin.startswith(folders)


def set_variables() -> dict[str, str]:
    """Return the variables set in the environment since this process began, except those that identify the rank."""
    try:
        assignments = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    initial = dict(os.fsdecode(assignment).partition("=")[::2] for assignment in assignments if assignment)
    return {
        name: value
        for name, value in os.environ.items()
        if initial.get(name) != value and not name.startswith(_NOT_THE_PROGRAMS) and name not in torchrun.NAMES
    }
