"""Engine of a rank: ipyparallel's engine with our shell, cell execution and requests, without nanny and key file."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import partial
from types import CodeType
from typing import Any

import ipyparallel.engine.app as ipp_app
import zmq
from jupyter_client.jsonutil import json_clean, json_default
from traitlets import Type
from traitlets.config import Config

from hvd_kernel.core import call_stack, deadlocks, metrics, training_steps
from hvd_kernel.errors import message_of
from hvd_kernel.frameworks import torch_backend
from hvd_kernel.protocol import notebook, rank_log
from hvd_kernel.protocol.messages import HALF_OPEN_MS, RAISED_TYPE, REMEMBERED_MESSAGES
from hvd_kernel.worker import communication, telemetry
from hvd_kernel.worker import names as frontend
from hvd_kernel.worker.elastic_cell import ElasticCell
from hvd_kernel.worker.inspect import variables
from hvd_kernel.worker.output import OutputCapture, encoded
from hvd_kernel.worker.shell import handlers, prompt, stack_report
from hvd_kernel.worker.shell.control import Control
from hvd_kernel.worker.shell.rank_shell import RankCompiler, RankShell
from hvd_kernel.worker.shell.tasks import TaskKernel, is_task

Pack = Callable[[Any], bytes]

_REGISTRATION_S = 60.0
_LOG = logging.getLogger("hvd_kernel")


class CellProgram(deadlocks.WatchedProgram):
    """Cells of one rank, for deadlock detection; created on the thread of its event loop, read by any thread."""

    def __init__(self, control: Control) -> None:
        self._control = control

    @property
    def run(self) -> int | None:
        """The current or last run; None during a request of the notebook, or before the first cell."""
        control = self._control
        return control.run_number if control.busy or self.is_over else None

    @property
    def is_over(self) -> bool:
        """True between cells, unless the loop has tasks of the user's, or a client may send some."""
        control = self._control
        if control.busy or control.has_clients or control.latest.ended is None:
            return False
        return not any(map(_is_users, _remaining_work(control.loop)))

    def cell_of(self, file: str) -> str | None:
        """Return the cell whose code has this file name."""
        return self._control.cell_of(file)


def _remaining_work(loop: asyncio.AbstractEventLoop | None) -> Iterator[Any]:
    """Yield the coroutines and callbacks that an event loop will still run."""
    if loop is None:
        return
    for task in asyncio.all_tasks(loop):
        coroutine: Any = task.get_coro()
        while coroutine is not None:
            yield coroutine
            coroutine = getattr(coroutine, "cr_await", None)
    for handle in list(getattr(loop, "_scheduled", ())):  # of call_later and call_at; asyncio has no public list
        if not handle.cancelled():
            yield handle._callback  # noqa: SLF001 - as above


def _is_users(work: Any) -> bool:
    """Return whether a coroutine, or a callback with its arguments, is code of the user's."""
    if isinstance(work, partial):
        return any(map(_is_users, (work.func, *work.args)))
    code = getattr(work, "cr_code", None) or getattr(work, "__code__", None)
    return isinstance(code, CodeType) and not call_stack.package_of(code.co_filename)


class RankKernel(TaskKernel):
    """Kernel that runs cells through Control and answers ``hvd_request`` on the shell and control channels."""

    shell_class = Type(RankShell)
    compiler_class = Type(RankCompiler)
    engine_id: int
    for_the_log: list[str]  # full tracebacks of this cell, which are only logged

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.for_the_log = []
        stack_report.open_pipe(self.engine_id)
        self.control = Control(self.engine_id, self.shell)
        self.control.prompts = prompt.RankPrompts(self.engine_id, self._publish, communication.park)
        self.control.on_rank = self._set_rank
        self.control.explain = partial(variables.explanation, self.control)
        self.control.announce = self._announce_error
        notebook.provide_membership(self._membership)
        deadlocks.set_program(CellProgram(self.control))
        self.control.elastic = ElasticCell(lambda: self.control.rank, self._publish_for_cell)
        self.debugging = prompt.Debugging(self.shell)
        self.debugging.install()
        self.telemetry = telemetry.Telemetry(
            self.engine_id, self._publish, lambda: self.control.prompts.parked, self.control.cell_of
        )
        self.shell_handlers["hvd_request"] = self.hvd_request
        self.control_handlers["hvd_request"] = self.hvd_request

    async def dispatch_shell(self, *message: Any, **options: Any) -> None:
        """Serve a request; until then this rank does not count as having ended its cell."""
        with deadlocks.serving():
            await super().dispatch_shell(*message, **options)

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Run a cell with telemetry; the last sample, after the last output, marks the cell's end for the notebook."""
        if is_task(parent):
            await self.execute_task(stream, ident, parent)
            return
        with self.telemetry.during(parent), self._answering(stream, ident, parent):
            await self._execute_cell(stream, ident, parent)

    async def _execute_cell(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        metrics.begin_cell()
        training_steps.begin_cell()
        options, code = parent["content"]["hvd"], parent["content"]["code"]
        with (
            self.output.during(parent, options["cell"], options["kernel"]),
            self.shell.display_pub.during(),
            frontend.during_cell(self.control.names, code),
            self.control.elastic.during(options.get("elastic", {})),
            torch_backend.independent() if options.get("independent") else nullcontext(),
        ):
            await super().execute_request(stream, ident, parent)
            self._answered = True
        for traceback in self.for_the_log:
            self.output.log(f"{traceback}\n")
        self.for_the_log.clear()
        self.shell.history_manager.forget()

    @contextmanager
    def _answering(self, stream: Any, ident: Any, parent: dict[str, Any]) -> Iterator[None]:
        """Send a reply for a cell without one when the block ends: the notebook would wait forever."""
        self._answered = False
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - any error must be reported to the notebook
            _LOG.exception("a cell could not be run, or its result not be sent")
            if not self._answered:
                options, request = parent["content"]["hvd"], parent["header"]["msg_id"]
                reply = _reply_of(self.control.give_up(error, options, request), options["cell"])
                self.session.send(stream, "execute_reply", reply, parent=parent, ident=ident)

    async def do_execute(self, code: str, silent: bool, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        """Run the cell's code."""
        parent = self.get_parent("shell")
        if is_task(parent):
            return await self.do_execute_task(code, silent=silent)
        options, request = parent["content"]["hvd"], parent["header"]["msg_id"]
        self._forward_input(allow_stdin=True)
        try:
            with self.control.prompts.during_cell(), self.debugging.during_cell(code):
                outcome = await self.control.run_cell(code, options, request)
        finally:
            self._restore_input()
        return _reply_of(outcome, options["cell"])

    def _membership(self) -> Any:
        from hvd_kernel.worker.elastic_cell import CellRanks  # noqa: PLC0415 - only elastic.run needs it

        return CellRanks(self.control.elastic)

    def _publish_for_cell(self, kind: str, content: dict[str, Any]) -> None:
        self._publish(kind, content, self.get_parent("shell"))

    def _announce_error(self, ename: str, evalue: str) -> None:
        self._publish_for_cell(RAISED_TYPE, {"ename": ename, "evalue": encoded(evalue).decode()})

    def _set_rank(self, rank: int) -> None:
        self.engine_id = self.control.prompts.rank = self.telemetry.rank = rank

    def _input_request(self, prompt: str, _ident: Any, parent: dict[str, Any], password: bool = False) -> str:
        """Request a line from the notebook's user, after all printed text, for input() and getpass()."""
        self.output.flush()
        return self.control.prompts.request(prompt, password=password, parent=parent)

    async def hvd_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Answer a request; an error is sent as text."""
        answer: Future[handlers.Answer] = Future()
        try:
            outcome = handlers.answer(self.control, parent["content"], parent["buffers"])
        except Exception as error:  # noqa: BLE001 - any error must be reported to the notebook
            answer.set_exception(error)
        else:
            if isinstance(outcome, Future):  # this thread must not wait: it receives interrupts
                loop, reply = asyncio.get_running_loop(), partial(self._reply, stream, ident, parent)
                outcome.add_done_callback(lambda done: loop.call_soon_threadsafe(reply, done))
                return
            answer.set_result(outcome)
        self._reply(stream, ident, parent, answer)

    def _reply(self, stream: Any, ident: Any, parent: dict[str, Any], answer: Future[handlers.Answer]) -> None:
        send = partial(self.session.send, stream, "hvd_reply", parent=parent, ident=ident)
        error = answer.exception()
        if error is None:
            content, buffers = answer.result()
            try:
                send(content, buffers=buffers)
            except Exception as refused:  # noqa: BLE001 - not JSON: nothing was sent, and the notebook waits
                error = refused
            else:
                return
        send({"error": f"{type(error).__name__}: {message_of(error)}"})

    # The notebook ignores a cell's "busy", "idle" and "execute_input": eight messages less per cell on four ranks.

    def _publish_status(self, status: str, channel: str, parent: dict[str, Any] | None = None) -> None:
        request = parent or self.get_parent(channel)
        if request.get("header", {}).get("msg_type") != "execute_request" or is_task(request):
            super()._publish_status(status, channel, parent)

    def _publish_execute_input(self, code: str, parent: dict[str, Any], execution_count: int) -> None:
        if is_task(parent):
            super()._publish_execute_input(code, parent, execution_count)

    def _publish(self, kind: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        self.session.send(self.iopub_socket, kind, content, parent=parent, ident=self._topic(kind))


class RankEngine(ipp_app.IPEngine):  # type: ignore[misc]
    """The engine process; SIGTERM ends it immediately, without MPI's finalisation, which waits for every rank."""

    def redirect_output(self, iopub_thread: Any) -> None:
        """Redirect output from the cluster's log to the rank's log."""
        logs = rank_log.folder(os.environ["IPYTHONDIR"])
        size = self.user_ns["size"]  # a replacement rank has not joined a communicator yet
        self.kernel.output = OutputCapture(self.id, size, logs, iopub_thread, self.kernel._publish)  # noqa: SLF001 - ours
        self.kernel.output.install()

    def _signal_stop(self, _number: int, _frame: object) -> None:
        if not self.kernel.control.busy:
            atexit._run_exitfuncs()  # noqa: SLF001 - the user's functions, and ours, which shuts communication down
        os._exit(0)


def _reply_of(outcome: dict[str, Any], cell: int) -> dict[str, Any]:
    """Return a cell's reply; ``outcome`` is the part that the notebook reads."""
    reply = {"execution_count": cell, "user_expressions": {}, "payload": [], "hvd": outcome}
    failure = outcome["failure"]
    if failure is None:
        return reply | {"status": "ok"}
    return reply | {"status": "error", "ename": failure["ename"], "evalue": failure["evalue"], "traceback": []}


def _spare_the_debugger() -> None:
    """Skip the import of debugpy, which takes 0.1 s and which an engine's channels cannot serve."""
    if "debugpy" not in sys.modules:
        sys.modules["debugpy"] = None  # type: ignore[assignment]
        importlib.import_module("ipykernel.debugger")
        del sys.modules["debugpy"]  # the user may import it


def packing(pack: Pack) -> Pack:
    """Return a packer of messages that also accepts lone surrogates, which Python strings may hold, as U+FFFD."""

    def pack_any(message: Any) -> bytes:
        try:
            return pack(message)
        except UnicodeEncodeError:
            text = json.dumps(json_clean(message), default=json_default, ensure_ascii=False, allow_nan=False)
            return encoded(text)

    return pack_any


def serve(rank: int, connection: dict[str, Any], namespace: dict[str, Any]) -> None:
    """Register as engine ``rank`` and run cells until the process is stopped."""
    _spare_the_debugger()
    zmq.Context.instance().setsockopt(zmq.HANDSHAKE_IVL, HALF_OPEN_MS)  # for every socket created later
    warnings.filterwarnings("ignore", "To exit: use", UserWarning)  # IPython's advice after sys.exit() does not apply
    ipp_app.Kernel = RankKernel  # IPEngine has no setting for it
    config = Config()
    config.RankEngine.enable_nanny = False
    config.RankEngine.timeout = _REGISTRATION_S
    config.RankEngine.log_level = logging.ERROR
    config.Session.digest_history_size = REMEMBERED_MESSAGES
    config.HistoryManager.enabled = False  # the notebook has it; a rank would write every cell to a database
    app = RankEngine.instance(config=config, id=rank, connection_info_env=json.dumps(connection), user_ns=namespace)
    app.initialize([])
    app.session.pack = packing(app.session.pack)
    app.start()
