"""ipyparallel's engine as we need it: our shell, our cell execution, requests of our own, no nanny, no key file."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

import ipyparallel.engine.app as ipp_app
import zmq
from ipykernel.compiler import XCachingCompiler
from ipykernel.zmqshell import ZMQInteractiveShell
from traitlets import Type
from traitlets.config import Config

from hvd_kernel.core import call_stack, deadlocks, metrics, training_steps
from hvd_kernel.errors import message_of
from hvd_kernel.protocol import cell_ranks, rank_log
from hvd_kernel.protocol.messages import HALF_OPEN_MS, RAISED_TYPE, REMEMBERED_MESSAGES
from hvd_kernel.worker import communication, telemetry
from hvd_kernel.worker.elastic_cell import ElasticCell
from hvd_kernel.worker.frontend import names as frontend
from hvd_kernel.worker.inspect import memory
from hvd_kernel.worker.output import traceback_frames
from hvd_kernel.worker.output.capture import OutputCapture, encoded
from hvd_kernel.worker.output.display_capture import RankDisplay
from hvd_kernel.worker.output.packing import packing
from hvd_kernel.worker.shell import debugger, handlers, prompt, stack_report
from hvd_kernel.worker.shell.cell_error import CellError
from hvd_kernel.worker.shell.cell_program import CellProgram
from hvd_kernel.worker.shell.control import Control
from hvd_kernel.worker.shell.recall import RankDisplayHook, RankHistory
from hvd_kernel.worker.shell.tasks import TaskKernel, is_task

_REGISTRATION_S = 60.0
_LOG = logging.getLogger("hvd_kernel")


class RankShell(ZMQInteractiveShell):
    """IPython's shell that releases the peers before it formats a traceback."""

    display_pub_class = Type(RankDisplay)
    displayhook_class = Type(RankDisplayHook)

    def init_history(self) -> None:
        """Create a history whose numbers are those of the notebook."""
        self.history_manager = RankHistory(shell=self, parent=self)
        self.configurables.append(self.history_manager)  # type: ignore[arg-type] # a list of any of them

    def init_events(self) -> None:
        """Mark callbacks, so that their errors do not count as the cell's."""
        super().init_events()  # type: ignore[no-untyped-call]
        self.cell_error = CellError()
        trigger = self.events.trigger

        def marked(*args: Any, **kwargs: Any) -> None:
            with self.cell_error.callback():
                trigger(*args, **kwargs)

        vars(self.events)["trigger"] = marked

    def init_traceback_handlers(self, custom_exceptions: Any) -> None:
        """Have IPython's formatter note of which package each frame is."""
        super().init_traceback_handlers(custom_exceptions)
        self.packages: dict[str, str] = {}  # of the frames of the traceback that is being shown
        plain = self.InteractiveTB.format_record

        def format_record(record: Any) -> str:
            text = str(plain(record))
            self.packages[text] = call_stack.package_of(record.filename or "")
            return text

        vars(self.InteractiveTB)["format_record"] = format_record

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        """Show a traceback without what libraries call inside; all of it goes to the log.

        The traceback that ends the cell becomes the cell's failure; another one is displayed as text, in its place.
        """
        kernel = self.kernel
        cell, in_task = kernel.control.latest.cell, kernel.control.in_task
        where = f"%hvdlogs{f' --cell {cell}' * bool(cell)} shows them"
        whole = self.InteractiveTB.mode == "Verbose" or in_task
        shown = stb if whole else traceback_frames.folded(stb, self.packages, where)
        self.packages.clear()
        ends = self.cell_error.ends_cell(evalue)
        if not in_task and (ends or shown != stb):
            kernel.for_the_log.append("\n".join(stb))
        if in_task:
            super()._showtraceback(etype, message_of(evalue), shown)  # type: ignore[no-untyped-call]
        elif ends:
            kernel.control.traceback = shown
        else:
            kernel.output.display_error("\n".join(shown))

    def show_usage_error(self, exc: BaseException) -> None:
        """Print the message of a magic, unless it ends the cell: the cell's failure has it then."""
        if self.cell_error.ends_cell(exc) and not self.kernel.control.in_task:
            self.kernel.for_the_log.append(f"UsageError: {exc}")
        else:
            super().show_usage_error(exc)  # type: ignore[no-untyped-call]

    async def run_ast_nodes(self, *args: Any, **kwargs: Any) -> bool:
        """Run statements; the first ones in a cell are the cell's own."""
        self.cell_error.begin_statements(kwargs.get("result"))
        failed: bool = await super().run_ast_nodes(*args, **kwargs)
        return failed

    async def run_code(self, *args: Any, **kwargs: Any) -> bool:
        """Run one statement of the user's, where an interrupt may raise."""
        with self.kernel.control.users_code(), self.kernel.debugging:
            failed: bool = await super().run_code(*args, **kwargs)  # type: ignore[no-untyped-call]
            if not failed:
                self.kernel.debugging.check_left()
        return failed

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:  # noqa: ARG002 - IPython's
        """Keep nothing: IPython would keep all that is printed for as long as the rank lives."""
        yield

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        """Show an error; one that ends the cell releases the peers first, and an interrupt's traceback is not made."""
        control, error = self.kernel.control, (exc_tuple or sys.exc_info())[1]
        if error is not None and self.cell_error.ends_cell(error):
            control.on_raise(error)
        if error is not None and control.is_interrupt(error):
            self._get_exc_info(exc_tuple)  # type: ignore[no-untyped-call] # for %debug
            return
        with self.kernel.debugging.suspended(), control.showing_error():
            super().showtraceback(exc_tuple, *args, **kwargs)

    def _format_exception_for_storage(self, exception: BaseException, *_: Any, **__: Any) -> dict[str, Any]:
        """Format nothing: IPython would format each traceback a second time, for a history that a rank has not."""
        return {"ename": type(exception).__name__, "evalue": message_of(exception), "traceback": []}

    def payloadpage_page(self, strg: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None) -> None:  # noqa: ARG002 - IPython's
        """Print what IPython shows in a pager: %prun, ``model?``, %psource."""
        data = strg if isinstance(strg, dict) else {"text/plain": strg}
        if "text/plain" in data:
            self.set_next_input("\n".join(data["text/plain"].splitlines()[max(0, start) :]))
        else:
            self.display_pub.publish(data)

    def set_next_input(self, text: str, replace: bool = False) -> None:  # noqa: ARG002 - IPython's
        """Print what IPython writes into a cell, which a rank cannot do: %load, %recall."""
        sys.stdout.write(f"{text}\n")

    def ask_exit(self) -> None:
        """End the cell as sys.exit() does, which is what exit() and quit() mean here: a rank ends with its cluster."""
        raise SystemExit

    def debugger(self, force: bool = False) -> None:
        """Look at the last exception with the rank's debugger: what %debug and %pdb call."""
        if force or self.call_pdb:
            self.kernel.debugging.post_mortem()


class RankCompiler(XCachingCompiler):
    """Gives a cell the same file name on every rank and in every run: warnings show it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._earlier: set[str] = set()  # files of cells that a kernel before this one has counted

    def count_anew(self) -> None:
        """Tell the cells so far from those that come: another kernel numbers them."""
        self._earlier = set(self._filename_map)

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        """Name a block of code, which may have been an earlier kernel's too."""
        name = super().cache(transformed_code, number, raw_code)
        self._earlier.discard(name)
        return name

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        """Return what a traceback calls a cell: ``Cell``, ``In[4]``."""
        found = super().format_code_name(name)
        return (found[0], f"{found[1]} (earlier kernel)") if found and name in self._earlier else found

    def get_code_name(self, raw_code: str, code: str, number: int) -> str:
        """Return it without this process's id."""
        name: str = super().get_code_name(raw_code, code, number)  # type: ignore[no-untyped-call]
        return name.replace(f"ipykernel_{os.getpid()}", "ipykernel_0")


class RankKernel(TaskKernel):
    """Runs cells through Control and answers ``hvd_request`` on shell and control channel."""

    shell_class = Type(RankShell)
    compiler_class = Type(RankCompiler)
    engine_id: int
    for_the_log: list[str]  # tracebacks of this cell that are to be there only

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.for_the_log = []
        stack_report.open_pipe(self.engine_id)
        self.control = Control(self.engine_id, self.shell)
        self.control.prompts = prompt.RankPrompts(self.engine_id, self._publish, communication.park)
        self.control.on_rank = self._take_rank
        self.control.explain = partial(memory.explanation, self.control)
        self.control.announce = self._announce_error
        cell_ranks.provide(self._membership)
        deadlocks.set_program(CellProgram(self.control))
        self.control.elastic = ElasticCell(lambda: self.control.rank, self._publish_for_cell)
        self.debugging = debugger.Debugging(self.shell)
        self.debugging.install()
        self.telemetry = telemetry.Telemetry(self.engine_id, self._publish, lambda: self.control.prompts.parked)
        self.shell_handlers["hvd_request"] = self.hvd_request
        self.control_handlers["hvd_request"] = self.hvd_request

    async def dispatch_shell(self, *message: Any, **how: Any) -> None:
        """Serve a request: until it has been served, this rank has not ended its cell."""
        with deadlocks.serving():
            await super().dispatch_shell(*message, **how)

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Run a cell with telemetry beside it; the last sample, after the last output, ends the cell for the reader."""
        if is_task(parent):
            await self.execute_task(stream, ident, parent)
            return
        with self.telemetry.during(parent), self._answering(stream, ident, parent):
            await self._execute_cell(stream, ident, parent)

    async def _execute_cell(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        metrics.begin_cell()
        training_steps.begin_cell()
        asked, code = parent["content"]["hvd"], parent["content"]["code"]
        with (
            self.output.during(parent, asked["cell"], asked["kernel"]),
            self.shell.display_pub.during(),
            frontend.during_cell(self.control.names, code),
            self.control.elastic.during(asked.get("elastic", {})),
        ):
            await super().execute_request(stream, ident, parent)
            self._answered = True
        for traceback in self.for_the_log:
            self.output.log(f"{traceback}\n")
        self.for_the_log.clear()
        self.shell.history_manager.forget()

    @contextmanager
    def _answering(self, stream: Any, ident: Any, parent: dict[str, Any]) -> Iterator[None]:
        """Answer for a cell that has no answer when the block ends: the notebook would wait for ever."""
        self._answered = False
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - whatever it is, the notebook must hear of it
            _LOG.exception("a cell has not been run, or its end not been told, as it should")
            if not self._answered:
                asked, request = parent["content"]["hvd"], parent["header"]["msg_id"]
                reply = _reply_of(self.control.give_up(error, asked, request), asked["cell"])
                self.session.send(stream, "execute_reply", reply, parent=parent, ident=ident)

    async def do_execute(self, code: str, silent: bool, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        """Run the cell's code."""
        parent = self.get_parent("shell")
        if is_task(parent):
            return await self.do_execute_task(code, silent=silent)
        asked, request = parent["content"]["hvd"], parent["header"]["msg_id"]
        self._forward_input(allow_stdin=True)
        try:
            with self.control.prompts.during_cell(), self.debugging.during_cell(code):
                ours = await self.control.run_cell(code, asked, request)
        finally:
            self._restore_input()
        return _reply_of(ours, asked["cell"])

    def _membership(self) -> Any:
        from hvd_kernel.worker.cell_membership import CellRanks  # noqa: PLC0415 - only elastic.run needs it

        return CellRanks(self.control.elastic)

    def _publish_for_cell(self, kind: str, content: dict[str, Any]) -> None:
        self._publish(kind, content, self.get_parent("shell"))

    def _announce_error(self, ename: str, evalue: str) -> None:
        self._publish_for_cell(RAISED_TYPE, {"ename": ename, "evalue": encoded(evalue).decode()})

    def _take_rank(self, rank: int) -> None:
        self.engine_id = self.control.prompts.rank = self.telemetry.rank = rank

    def _input_request(self, prompt: str, _ident: Any, parent: dict[str, Any], password: bool = False) -> str:
        """Ask the user in front of the notebook, after what was printed: input() and getpass() end here."""
        self.output.flush()
        return self.control.prompts.ask(prompt, password=password, parent=parent)

    async def hvd_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Answer a request; an error travels as text."""
        answer: Future[handlers.Answer] = Future()
        try:
            given = handlers.answer(self.control, parent["content"], parent["buffers"])
        except Exception as error:  # noqa: BLE001 - whatever it is, the notebook must hear of it
            answer.set_exception(error)
        else:
            if isinstance(given, Future):  # this thread goes on: it has to hear of an interrupt
                loop, reply = asyncio.get_running_loop(), partial(self._reply, stream, ident, parent)
                given.add_done_callback(lambda done: loop.call_soon_threadsafe(reply, done))
                return
            answer.set_result(given)
        self._reply(stream, ident, parent, answer)

    def _reply(self, stream: Any, ident: Any, parent: dict[str, Any], answer: Future[handlers.Answer]) -> None:
        send = partial(self.session.send, stream, "hvd_reply", parent=parent, ident=ident)
        error = answer.exception()
        if error is None:
            content, buffers = answer.result()
            try:
                send(content, buffers=buffers)
            except Exception as refused:  # noqa: BLE001 - it is no JSON: nothing has been sent, and the notebook waits
                error = refused
            else:
                return
        send({"error": f"{type(error).__name__}: {message_of(error)}"})

    # A cell's "busy", "idle" and "execute_input" have no reader here: eight messages less per cell on four ranks.

    def _publish_status(self, status: str, channel: str, parent: dict[str, Any] | None = None) -> None:
        asked = parent or self.get_parent(channel)
        if asked.get("header", {}).get("msg_type") != "execute_request" or is_task(asked):
            super()._publish_status(status, channel, parent)

    def _publish_execute_input(self, code: str, parent: dict[str, Any], execution_count: int) -> None:
        if is_task(parent):
            super()._publish_execute_input(code, parent, execution_count)

    def _publish(self, kind: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        self.session.send(self.iopub_socket, kind, content, parent=parent, ident=self._topic(kind))


class RankEngine(ipp_app.IPEngine):  # type: ignore[misc]
    """The engine process; SIGTERM ends it at once, without MPI's finalisation, which waits for every rank."""

    def redirect_output(self, iopub_thread: Any) -> None:
        """Send what is printed from here on to the rank's log; until now it went to the cluster's."""
        logs = rank_log.folder(os.environ["IPYTHONDIR"])
        size = self.user_ns["size"]  # a rank that replaces another has met nobody yet
        self.kernel.output = OutputCapture(self.id, size, logs, iopub_thread, self.kernel._publish)  # noqa: SLF001 - ours
        self.kernel.output.take_over()

    def _signal_stop(self, _number: int, _frame: object) -> None:
        if not self.kernel.control.busy:
            atexit._run_exitfuncs()  # noqa: SLF001 - the user's own, and ours that shuts communication down
        os._exit(0)


def _reply_of(ours: dict[str, Any], cell: int) -> dict[str, Any]:
    """Return a cell's reply; ``ours``: its part that the notebook reads."""
    reply = {"execution_count": cell, "user_expressions": {}, "payload": [], "hvd": ours}
    failure = ours["failure"]
    if failure is None:
        return reply | {"status": "ok"}
    return reply | {"status": "error", "ename": failure["ename"], "evalue": failure["evalue"], "traceback": []}


def _spare_the_debugger() -> None:
    """Save each rank 0.1 s: ipykernel would import debugpy, which an engine's channels cannot serve anyway."""
    if "debugpy" not in sys.modules:
        sys.modules["debugpy"] = None  # type: ignore[assignment]
        importlib.import_module("ipykernel.debugger")
        del sys.modules["debugpy"]  # the user may import it


def serve(rank: int, connection: dict[str, Any], namespace: dict[str, Any]) -> None:
    """Register as engine ``rank`` and run cells until told to stop."""
    _spare_the_debugger()
    zmq.Context.instance().setsockopt(zmq.HANDSHAKE_IVL, HALF_OPEN_MS)  # of every socket made from here on
    warnings.filterwarnings("ignore", "To exit: use", UserWarning)  # IPython's advice after sys.exit(): not here
    ipp_app.Kernel = RankKernel  # IPEngine has no setting for it
    config = Config()
    config.RankEngine.enable_nanny = False
    config.RankEngine.timeout = _REGISTRATION_S
    config.RankEngine.log_level = logging.ERROR
    config.Session.digest_history_size = REMEMBERED_MESSAGES
    config.HistoryManager.enabled = False  # the notebook keeps it; a rank would write every cell to a database
    app = RankEngine.instance(config=config, id=rank, connection_info_env=json.dumps(connection), user_ns=namespace)
    app.initialize([])
    app.session.pack = packing(app.session.pack)
    app.start()
