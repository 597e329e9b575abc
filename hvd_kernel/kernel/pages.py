"""Kernel and comm info for a page that opens while a cell runs, so that it shows widgets immediately.

A page that opens a notebook requests the kernel info, the list of comms, and the state of their widgets. ipykernel
replies on the main thread, after the cell. These requests are read-only, so while a cell runs, the shell channel's
thread handles them, in order. All other messages to widgets wait for the main thread.

Terms.
  control   the comm through which a page requests the state of all widgets
  readable  a comm whose custom messages are read-only too: its owner has set ``READABLE``
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

from hvd_kernel.kernel.introspection import ConcurrentIntrospection, Reply
from hvd_kernel.protocol.messages import READABLE

_CONTROL = "jupyter.widget.control"
_STATE = ("request_state", "request_states")
Message = dict[str, Any]


class PagesAside(ConcurrentIntrospection):
    """ipykernel's kernel, which serves newly opened pages also while a cell runs."""

    comm_manager: Any

    async def shell_channel_thread_main(self, msg: list[Any]) -> None:
        """Handle requests of a page that opens in this thread during a cell; pass other messages on."""
        if self.in_cell:
            idents, request = self._peek(msg)
            answer = self._for_page(idents, request) if request else None
            if answer is not None:
                self._publish_shell_status("busy", request)
                reply = answer()
                if reply is not None:
                    kind = request["header"]["msg_type"].replace("_request", "_reply")
                    self.session.send(self.shell_stream, kind, reply, request, idents)
                self._publish_shell_status("idle", request)
                return
        await super().shell_channel_thread_main(msg)

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
    "kernel_info_request": PagesAside._kernel_info,  # noqa: SLF001 - of this file, also below
    "comm_info_request": PagesAside._comm_info,  # noqa: SLF001
    "comm_open": PagesAside._comm_open,  # noqa: SLF001
    "comm_msg": PagesAside._comm_msg,  # noqa: SLF001
}
