"""Actor of Ray's that is one rank: ``horovod.ray.worker``. Its process holds the rank's state over calls.

Functions run on the process's main thread. Ray blocks SIGINT there; here it interrupts a function that is running, and
nothing else. A busy actor would outlive a raylet that is killed: it watches that process, and ends with it.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from hvd_kernel import compat
from hvd_kernel.launch.run.call import Answer, failed, release_peers
from hvd_kernel.processes.agent import card
from hvd_kernel.processes.lifetime import children, kill
from hvd_kernel.processes.ports import bound
from hvd_kernel.ray import ray_logger
from hvd_kernel.ray.utils import ray_api
from hvd_kernel.settings.launchers import without_launchers

NONE, UP, ABORTED = "none", "up", "aborted"
"""A rank's communication: before ``hvd.init`` or after ``hvd.shutdown``; between them; ended by a failure."""

_OURS = str(Path(__file__).parent)


class BaseHorovodWorker:
    """One rank.

    Parameters
    ----------
    world_rank, world_size
        What it is at first; the executor may number the ranks anew, node by node.
    """

    executable: Any = None
    """What ``execute`` works on: an object of the executor's ``executable_cls``."""

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        for name in set(os.environ) - set(without_launchers(os.environ)):
            del os.environ[name]
        compat.install_in_rank()
        os.environ["HVD_HOST"] = self.node_id()
        os.environ["HOROVOD_HOSTNAME"] = self.node_id()
        os.environ["HOROVOD_RANK"] = str(world_rank)
        os.environ["HOROVOD_SIZE"] = str(world_size)
        self.is_busy = False
        self._samples: Any = None
        self._port: socket.socket | None = None
        signal.signal(signal.SIGINT, self._interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _end_with(int(os.environ.get("RAY_RAYLET_PID", "0")))
        end_below_at_sigterm()

    def node_id(self) -> str:
        """Return the id of Ray's node that it is on."""
        return str(ray_api().get_runtime_context().get_node_id())

    def hostname(self) -> str:
        """Return the name of its host."""
        return socket.gethostname()

    def pid(self) -> int:
        """Return its process."""
        return os.getpid()

    def get_gpu_ids(self) -> list[Any]:
        """Return the GPUs that Ray has given it."""
        return list(ray_api().get_gpu_ids())

    def card(self) -> dict[str, Any]:
        """Return how its host can be reached, with a port that it keeps free for the ranks to meet."""
        self._port = self._port or bound()
        return card(self._port.getsockname()[1])

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Set variables of its process."""
        os.environ.update({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """Return the variables of its process."""
        return dict(os.environ)

    def set_queue(self, queue: Any, *, samples: bool = False) -> None:
        """Have ``ray_logger.log`` put its values there; None: nowhere. ``samples``: what this rank does, too."""
        ray_logger.configure(queue)
        self._samples = queue if samples else None

    def telling(self) -> AbstractContextManager[Any]:
        """Tell what this rank does, from ``hvd.init`` to the end of the ``with``, where somebody wants to know."""
        queue, self._samples = self._samples, None  # of this call
        if queue is None:
            return nullcontext()
        # Only here is this process a rank's: the driver, which has this file too, needs nothing of it.
        telemetry = importlib.import_module("hvd_kernel.worker.job_telemetry")
        found: AbstractContextManager[Any] = telemetry.Telling(partial(_put, self, queue))
        return found

    def start_executable(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Make the object that ``execute`` works on."""
        if executable_cls:
            self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Return ``func(executable)``. What it raises releases the ranks that wait for this one."""
        return _carried_out(self, func)

    def answer(self, func: Callable[[Any], Any]) -> tuple[Any, Answer | None]:
        """Return what ``execute`` does, and None; or None, and what it has raised."""
        try:
            return _carried_out(self, func), None
        except SystemExit as leaving:
            return (None, None) if leaving.code in {None, 0} else (None, failed(leaving, _OURS))
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt is a failure of the function too
            return None, failed(error, _OURS)

    def make(self, *made: Any) -> tuple[Any, Answer | None]:
        """Do as ``start_executable``; return as ``answer``."""
        return self.answer(lambda _: self.start_executable(*made))

    def communication(self) -> str:
        """Tell whether it has met the other ranks, and whether a failure has ended that since."""
        session = sys.modules.get("hvd_kernel.core.session")
        if session is None or not session.is_initialized():
            return NONE
        return UP if session.engine().aborted() is None else ABORTED

    def reconnect(self) -> None:
        """Meet the other ranks again, which do the same now, after a failure has ended their communication."""
        sys.modules["hvd_kernel.core.process_sets"].reset_to_all_ranks()

    def disconnect(self) -> None:
        """Leave the other ranks."""
        if self.communication() != NONE:
            sys.modules["hvd_kernel.core.session"].shutdown()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_busy:
            self.is_busy = False
            raise KeyboardInterrupt


def _carried_out(worker: BaseHorovodWorker, func: Callable[[Any], Any]) -> Any:
    """Call the function. Not a method: around those Ray puts a frame of its own."""
    try:
        with worker.telling():
            worker.is_busy = True
            value = func(worker.executable)
            worker.is_busy = False
    except BaseException as error:
        worker.is_busy = False
        release_peers(error)
        raise
    return value


def _put(worker: BaseHorovodWorker, queue: Any, sample: Any) -> None:
    if worker.communication() != NONE:
        with suppress(ray_api().exceptions.RayActorError):  # the queue is gone: nobody looks on
            queue.put(sample)


def _end_with(pid: int) -> None:
    """End, with all that this process has started, when another one does."""
    try:
        watched = os.pidfd_open(pid)
    except OSError:
        return

    def wait() -> None:
        select.select([watched], [], [])
        _kill_below(os.getpid())
        kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="hvd-life", daemon=True).start()


def end_below_at_sigterm() -> None:
    """Have SIGTERM end all that this process has started, also while its main thread is in C code.

    So a raylet ends an actor whose owner is gone, and kills it 0.2 s later: what is in sessions of its own would stay.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    before = signal.getsignal(signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> None:
        _kill_below(os.getpid())  # here too: Ray's handler, which follows, may be faster than the thread
        if callable(before):
            before(number, frame)
        else:
            sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def wait() -> None:
        while numbers := os.read(reader, 64):
            if signal.SIGTERM in numbers:
                _kill_below(os.getpid())

    threading.Thread(target=wait, name="hvd-sigterm", daemon=True).start()


def _kill_below(pid: int) -> None:
    for child in children(pid):
        _kill_below(child)
        kill(child, signal.SIGKILL)
