"""Requests that the kernel handles also while the main thread runs a cell on the ranks.

ipykernel handles all requests on the main thread in order of arrival: during a cell, a reply would be sent after the
cell's end. The shell channel's thread handles these instead, and passes all others to the main thread, in order:

- completion and inspection of names in rank cells: the ranks can be queried from any thread.
- the kernel info, the list of comms, and the state of widgets, which a page requests when it opens a notebook, so that
  it shows widgets immediately. They are read-only; all other messages to widgets wait for the main thread.

Terms.
  control   the comm through which a page requests the state of all widgets
  readable  a comm whose custom messages are read-only too: its owner has set ``READABLE``
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

from ipykernel.ipkernel import IPythonKernel

from hvd_kernel.magics import names_of
from hvd_kernel.protocol.messages import READABLE

_REPLIES = {"complete_request": "complete_reply", "inspect_request": "inspect_reply"}
_CONTROL = "jupyter.widget.control"
_STATE = ("request_state", "request_states")
Message = dict[str, Any]
Reply = dict[str, Any]


class ConcurrentKernel(IPythonKernel):
    """ipykernel's kernel, which serves queries about names and newly opened pages also while a cell runs."""

    shell: Any
    session: Any
    comm_manager: Any

    def __init__(self, **kwargs: Any) -> None:
        self._request: Message | None = None  # the one that the main thread handles
        self._status_lock = threading.Lock()
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]

    @property
    def in_cell(self) -> bool:
        """True while the main thread runs a cell."""
        request = self._request
        return request is not None and request["header"]["msg_type"] == "execute_request"

    def do_complete(self, code: str, cursor_pos: int | None) -> Any:
        """Complete a name; in a rank cell with the names on the ranks."""
        position = len(code) if cursor_pos is None else cursor_pos
        answer = self._answer_of_ranks("complete_request", {"code": code, "cursor_pos": position})
        return answer() if answer else super().do_complete(code, cursor_pos)  # type: ignore[no-untyped-call]

    def do_inspect(self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()) -> Any:
        """Describe a name; in a rank cell its value on the ranks."""
        content = {"code": code, "cursor_pos": cursor_pos, "detail_level": detail_level}
        answer = self._answer_of_ranks("inspect_request", content)
        if answer:
            return answer()
        return super().do_inspect(code, cursor_pos, detail_level, omit_sections)  # type: ignore[no-untyped-call]

    async def shell_channel_thread_main(self, msg: list[Any]) -> None:
        """Handle queries about names, and requests of a page that opens, in this thread during a cell."""
        if self.in_cell:
            idents, request = self._peek(msg)
            page = self._for_page(idents, request) if request else None
            if page is not None:
                self._serve_page(idents, request, page)
                return
            names = self._for_names(request) if request else None
            if names is not None:
                await self._reply(idents, request, names)
                return
        await super().shell_channel_thread_main(msg)  # type: ignore[no-untyped-call]

    def _publish_status(self, status: str, channel: str, parent: dict[str, Any] | None = None) -> None:
        """Record which request the main thread handles."""
        with self._status_lock:
            if channel == "shell" and threading.current_thread() is threading.main_thread():
                self._request = (parent or self.get_parent(channel)) if status == "busy" else None  # type: ignore[no-untyped-call]
            super()._publish_status(status, channel, parent)  # type: ignore[no-untyped-call]
            if channel == "control" and status == "idle":
                self._still_busy("control", parent)

    def _answer_of_ranks(self, kind: str, content: dict[str, Any]) -> Callable[[], Reply] | None:
        """Return a function that queries the ranks about a name in a rank cell; None for any other request."""
        names, code, cursor = names_of(self.shell), content["code"], content["cursor_pos"]
        cell = names.cell(code, cursor) if names is not None else None
        if names is None or cell is None:
            return None
        if kind == "complete_request":
            return partial(names.complete, cell, cursor)
        if names.local(code, cursor, cell):
            return None
        return partial(names.inspect, code, cursor, cell, content.get("detail_level", 0))

    def _peek(self, msg: list[Any]) -> tuple[list[bytes], dict[str, Any]]:
        """Return a request with packed content; {} if its signature is invalid, which ipykernel reports."""
        idents, frames = self.session.feed_identities(msg, copy=False)
        try:
            return idents, self.session.deserialize(frames, content=False, copy=False)
        except ValueError:
            return idents, {}

    def _for_names(self, request: Message) -> Callable[[], Reply] | None:
        """Return a function that completes or inspects a name in a rank cell; None for any other message."""
        header = request["header"]
        if header["msg_type"] not in _REPLIES or header.get("subshell_id"):
            return None
        return self._answer_of_ranks(header["msg_type"], self.session.unpack(request["content"]))

    async def _reply(self, idents: list[bytes], request: dict[str, Any], answer: Callable[[], Reply]) -> None:
        self._publish_shell_status("busy", request)
        content = await asyncio.get_running_loop().run_in_executor(None, answer)
        self.session.send(self.shell_stream, _REPLIES[request["header"]["msg_type"]], content, request, idents)
        self._publish_shell_status("idle", request)

    def _serve_page(self, idents: list[bytes], request: Message, answer: Callable[[], Reply | None]) -> None:
        self._publish_shell_status("busy", request)
        reply = answer()
        if reply is not None:
            kind = request["header"]["msg_type"].replace("_request", "_reply")
            self.session.send(self.shell_stream, kind, reply, request, idents)
        self._publish_shell_status("idle", request)

    def _publish_shell_status(self, status: str, request: dict[str, Any]) -> None:
        """Publish the status of a request that the shell channel's thread handles."""
        with self._status_lock:
            super()._publish_status(status, "shell", request)  # type: ignore[no-untyped-call]
            if status == "idle":
                self._still_busy("shell", request)

    def _still_busy(self, channel: str, parent: dict[str, Any] | None) -> None:
        """Publish "busy" again after an "idle" while a cell runs: front ends show the latest status as the kernel's.

        Not for other requests of the main thread: JupyterLab ignores the status of some kinds (comm_info), so it would
        ignore their "idle", and show this "busy" forever. No front end ignores the "idle" of a cell.
        """
        if self.in_cell:
            super()._publish_status("busy", channel, parent)  # type: ignore[no-untyped-call]

    def _for_page(self, idents: list[bytes], request: Message) -> Callable[[], Reply | None] | None:
        """Return a function that handles a request of a page that opens; None for any other message."""
        kind = request["header"]["msg_type"]
        content = self.session.unpack(request["content"]) if kind in _HANDLERS else None
        if not isinstance(content, dict):
            return None
        return _HANDLERS[kind](self, idents, request | {"content": content})

    def _kernel_info(self, _idents: list[bytes], _request: Message) -> Callable[[], Reply]:
        return lambda: {"status": "ok", **self.kernel_info}

    def _comm_info(self, _idents: list[bytes], request: Message) -> Callable[[], Reply]:
        target = request["content"].get("target_name")
        names = {comm_id: comm.target_name for comm_id, comm in list(self.comm_manager.comms.items())}
        comms = {comm_id: {"target_name": name} for comm_id, name in names.items() if target in (None, name)}
        return lambda: {"status": "ok", "comms": comms}

    def _comm_open(self, idents: list[bytes], request: Message) -> Callable[[], None] | None:
        if request["content"].get("target_name") != _CONTROL:
            return None
        return partial(self._handle, request, partial(self.comm_manager.comm_open, None, idents))

    def _comm_msg(self, _idents: list[bytes], request: Message) -> Callable[[], None] | None:
        comm = self.comm_manager.comms.get(str(request["content"].get("comm_id")))
        data = request["content"].get("data")
        if comm is None or not isinstance(data, dict):
            return None
        method = data.get("method")
        if method not in _STATE and not (method == "custom" and getattr(comm, READABLE, False)):
            return None
        # Not comm.handle_msg: it runs IPython's hooks for cells.
        return partial(self._handle, request, comm._msg_callback)  # noqa: SLF001 - it has no public name

    def _handle(self, request: Message, callback: Callable[[Message], object]) -> None:
        """Handle a message of a comm with the request as parent of what it publishes; the cell keeps its parent."""

        def run() -> None:
            self._shell_parent.set(request)
            callback(request)

        try:
            Context().run(run)
        except Exception:
            self.log.exception("a widget could not answer")


_HANDLERS: dict[str, Callable[[Any, list[bytes], Message], Callable[[], Any] | None]] = {
    "kernel_info_request": ConcurrentKernel._kernel_info,  # noqa: SLF001 - of this file, also below
    "comm_info_request": ConcurrentKernel._comm_info,  # noqa: SLF001
    "comm_open": ConcurrentKernel._comm_open,  # noqa: SLF001
    "comm_msg": ConcurrentKernel._comm_msg,  # noqa: SLF001
}
