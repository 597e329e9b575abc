"""Ray actor that is one rank: ``horovod.ray.worker``. Its process keeps the rank's state between calls.

Functions run on the main thread of the process. Ray blocks SIGINT there; this module unblocks it, so that it interrupts
a running function, and only that. A busy actor would outlive a killed raylet, so it watches that process and exits
with it.
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
from hvd_kernel.frameworks import torch_backend
from hvd_kernel.launch.run.call import Answer, failed, release_peers
from hvd_kernel.processes.agent import card
from hvd_kernel.processes.lifetime import children, kill
from hvd_kernel.processes.ports import bound
from hvd_kernel.ray import ray_logger
from hvd_kernel.ray.utils import ray_api
from hvd_kernel.settings import torchrun
from hvd_kernel.settings.lookup import without_launchers

NONE, UP, ABORTED = "none", "up", "aborted"
"""State of a rank's communication: before ``hvd.init`` or after ``hvd.shutdown``; between them; after a failure."""

_OURS = str(Path(__file__).parent)


class BaseHorovodWorker:
    """A rank.

    Parameters
    ----------
    world_rank, world_size
        Initial rank and number of ranks; the executor may renumber the ranks by node.
    """

    executable: Any = None
    """Argument of the functions of ``execute``: an object of the executor's ``executable_cls``."""

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        for name in set(os.environ) - set(without_launchers(os.environ)):
            del os.environ[name]
        compat.install_in_rank()
        torch_backend.offer()
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
        """Return the id of this actor's Ray node."""
        return str(ray_api().get_runtime_context().get_node_id())

    def hostname(self) -> str:
        """Return the name of this actor's host."""
        return socket.gethostname()

    def pid(self) -> int:
        """Return the process id."""
        return os.getpid()

    def get_gpu_ids(self) -> list[Any]:
        """Return the GPUs that Ray has assigned to this actor."""
        return list(ray_api().get_gpu_ids())

    def card(self) -> dict[str, Any]:
        """Return the addresses of this host, with a port that is reserved for the ranks' rendezvous."""
        self._port = self._port or bound()
        return card(self._port.getsockname()[1])

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Set environment variables of this process, and torchrun's if they number it as a rank."""
        variables = {name: str(value) for name, value in env_vars.items()}
        os.environ.update(variables)
        if torchrun.ADDRESS in variables:
            os.environ.update({**torchrun.with_variables(os.environ), **variables})

    def env_vars(self) -> dict[str, str]:
        """Return the environment variables of this process."""
        return dict(os.environ)

    def set_queue(self, queue: Any, *, samples: bool = False) -> None:
        """Send values of ``ray_logger.log``, with ``samples`` also this rank's activity, to a queue; None: discard."""
        ray_logger.configure(queue)
        self._samples = queue if samples else None

    def reporting(self) -> AbstractContextManager[Any]:
        """Report this rank's activity from ``hvd.init`` to the end of the ``with``, if a queue for samples is set."""
        queue, self._samples = self._samples, None  # for one call
        if queue is None:
            return nullcontext()
        # Imported in ranks only: the driver imports this file too, and does not need the module.
        telemetry = importlib.import_module("hvd_kernel.worker.job_telemetry")
        context: AbstractContextManager[Any] = telemetry.SampleReporter(partial(_put, self, queue))
        return context

    def start_executable(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the argument of the functions of ``execute``."""
        if executable_cls:
            self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Return ``func(executable)``. An exception releases the ranks that wait for this rank."""
        return _call(self, func)

    def answer(self, func: Callable[[Any], Any]) -> tuple[Any, Answer | None]:
        """Call ``func(executable)``; return its value and None, or None and the exception."""
        try:
            return _call(self, func), None
        except SystemExit as error:
            return (None, None) if error.code in {None, 0} else (None, failed(error, _OURS))
        except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt is a failure of the function too
            return None, failed(error, _OURS)

    def make(self, *args: Any) -> tuple[Any, Answer | None]:
        """Call ``start_executable``; return None and the exception, if there is one, like ``answer``."""
        return self.answer(lambda _: self.start_executable(*args))

    def communication(self) -> str:
        """Return the state of this rank's communication: ``NONE``, ``UP`` or ``ABORTED``."""
        session = sys.modules.get("hvd_kernel.core.session")
        if session is None or not session.is_initialized():
            return NONE
        return UP if session.engine().aborted() is None else ABORTED

    def reconnect(self) -> None:
        """Reconnect to the other ranks after a failure; all ranks do this at the same time."""
        sys.modules["hvd_kernel.core.process_sets"].reset_to_all_ranks()

    def disconnect(self) -> None:
        """Disconnect from the other ranks."""
        if self.communication() != NONE:
            sys.modules["hvd_kernel.core.session"].shutdown()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self.is_busy:
            self.is_busy = False
            raise KeyboardInterrupt


def _call(worker: BaseHorovodWorker, func: Callable[[Any], Any]) -> Any:
    """Call the function. Not a method: Ray adds a frame to the traceback of a method."""
    try:
        with worker.reporting():
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
        with suppress(ray_api().exceptions.RayActorError):  # the queue is gone, and with it the panel
            queue.put(sample)


def _end_with(pid: int) -> None:
    """Exit when another process exits, and kill all descendants first."""
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
    """Kill all descendants of this process at SIGTERM, also while its main thread runs C code.

    A raylet stops an actor whose owner is gone with SIGTERM, and with SIGKILL 0.2 s later: descendants in other
    sessions would remain.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    before = signal.getsignal(signal.SIGTERM)

    def end(number: int, frame: FrameType | None) -> None:
        _kill_below(os.getpid())  # here too: Ray's handler, which runs next, may exit before the thread does this
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
