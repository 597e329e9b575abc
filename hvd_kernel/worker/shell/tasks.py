"""Requests of ipyparallel on a rank: apply and execute of an ordinary Client, beside the notebook's cells.

A task runs between cells, on the main thread. All of its output is sent to its client. An error releases the peers only
if the task has taken part in a collective: it does not affect other tasks and cells.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ipyparallel.engine.kernel import IPythonParallelKernel

from hvd_kernel.protocol.messages import BROKEN_TYPE
from hvd_kernel.worker import communication
from hvd_kernel.worker import names as frontend
from hvd_kernel.worker.output import OutputCapture, Room
from hvd_kernel.worker.shell.control import Control

_KERNEL = "ipyparallel"  # in the log, in place of the notebook's kernel
_WHOLE = Room(1 << 62, 1 << 61)  # an ordinary client cannot handle text that is left out
_SEARCHED_BYTES = 1 << 16  # of each buffer, in which names of a function are searched
_REFUSED = (
    "rc.shutdown() would end a rank of the notebook's cluster: `%hvd stop` ends all of them, `%hvd respawn N --force` "
    "replaces one"
)


def is_task(parent: Mapping[str, Any]) -> bool:
    """Return whether a request is an ordinary client's: a cell of the notebook has an ``hvd`` part."""
    return "hvd" not in parent.get("content", {})


class TaskKernel(IPythonParallelKernel):  # type: ignore[misc]
    """Kernel that serves ipyparallel's client."""

    control: Control
    output: OutputCapture

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.control_handlers["signal_request"] = self.signal_request
        self.control_handlers["shutdown_request"] = self.refuse_shutdown

    def apply_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Call a function."""
        texts = (bytes(memoryview(part)[:_SEARCHED_BYTES]).decode("latin-1") for part in parent["buffers"])
        with self._during_task(parent, " ".join(texts)):
            super().apply_request(stream, ident, parent)

    def do_apply(self, content: Any, bufs: Any, msg_id: str, reply_metadata: Any) -> tuple[dict[str, Any], list[Any]]:
        """Call the function where an interrupt may raise."""
        try:
            with self.control.users_code(), self.shell.cell_error.call(IPythonParallelKernel.do_apply.__code__):
                reply: tuple[dict[str, Any], list[Any]] = super().do_apply(content, bufs, msg_id, reply_metadata)
                return reply
        except KeyboardInterrupt as error:  # between the function and ipyparallel's code
            self.control.on_raise(error)
            return self._failed(error, "apply"), []

    async def execute_task(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Run code; a failure does not abort other requests in the queue, which may be cells."""
        parent["content"]["stop_on_error"] = False
        with self._during_task(parent, parent["content"]["code"]):
            await super().execute_request(stream, ident, parent)

    async def do_execute_task(self, code: str, *, silent: bool) -> dict[str, Any]:
        """Run the code and return the reply's content."""
        self._forward_input(allow_stdin=False)
        try:
            error = await self.control.run_task(code, silent=silent)
        finally:
            self._restore_input()
        reply = {"execution_count": self.shell.execution_count - 1, "user_expressions": {}, "payload": []}
        return reply | ({"status": "ok"} if error is None else self._failed(error, "execute"))

    def clear_request(self, stream: Any, idents: Any, parent: dict[str, Any]) -> None:
        """Clear the namespace, except the names that every cell has."""
        names = {name: self.shell.user_ns[name] for name in frontend.NAMES if name in self.shell.user_ns}
        super().clear_request(stream, idents, parent)
        self.shell.user_ns.update(names)

    def abort_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Drop tasks that have not begun; without ids ipyparallel would drop cells too."""
        if not parent["content"].get("msg_ids"):
            self.session.send(stream, "abort_reply", content={"status": "ok"}, parent=parent, ident=ident)
            return
        super().abort_request(stream, ident, parent)

    async def signal_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Interrupt the running task, but no cell; or send another signal to this process."""
        requested = parent["content"]["sig"]
        number = getattr(signal, requested) if isinstance(requested, str) else signal.Signals(requested)
        if number == signal.SIGINT:
            self.control.interrupt_task()
        self.session.send(stream, "signal_reply", content={"status": "ok"}, parent=parent, ident=ident)
        if number != signal.SIGINT:
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), number)

    async def refuse_shutdown(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Reply that a rank ends with its cluster."""
        content = {"status": "error", "ename": "UsageError", "evalue": _REFUSED, "traceback": []}
        content["engine_info"] = self.get_engine_info(method="shutdown")
        self.session.send(stream, "shutdown_reply", content=content, parent=parent, ident=ident)

    @contextmanager
    def _during_task(self, parent: dict[str, Any], text: str) -> Iterator[None]:
        with (
            self.output.during(parent, 0, _KERNEL, _WHOLE),
            self.shell.display_pub.during(),
            frontend.during_cell(self.control.names, text),
            self.control.task(),
        ):
            yield
        if communication.aborted():
            self.session.send(self.iopub_socket, BROKEN_TYPE, {}, ident=self._topic(BROKEN_TYPE))

    def _failed(self, error: BaseException, method: str) -> dict[str, Any]:
        lines, self.shell._last_traceback = self.shell._last_traceback or [], None  # noqa: SLF001 - ipykernel's own way
        content = {"ename": type(error).__name__, "evalue": str(error), "traceback": lines}
        return {"status": "error", **content, "engine_info": self.get_engine_info(method=method)}
