"""Kernel and comm info for a page that opens while a cell runs, so that it shows widgets at once.

A page that opens a notebook asks what kernel this is, which comms there are, and what their widgets look like.
ipykernel answers on the main thread, after the cell. These questions change nothing, so the shell channel's thread
answers them, in their order, while the main thread is at a cell. What else a page says to widgets keeps its place.

Terms.
  control   the comm by which a page asks for the state of all widgets at once
  readable  a comm whose custom messages are questions too: its owner has set ``READABLE`` on it
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
    """ipykernel's kernel that tells pages at any time what they have to show."""

    comm_manager: Any

    async def shell_channel_thread_main(self, msg: list[Any]) -> None:
        """Answer a page that asks what there is, hand on the rest."""
        if self.in_cell:
            idents, request = self._peek(msg)
            answer = self._for_page(idents, request) if request else None
            if answer is not None:
                self._tell("busy", request)
                reply = answer()
                if reply is not None:
                    kind = request["header"]["msg_type"].replace("_request", "_reply")
                    self.session.send(self.shell_stream, kind, reply, request, idents)
                self._tell("idle", request)
                return
        await super().shell_channel_thread_main(msg)

    def _for_page(self, idents: list[bytes], request: Message) -> Callable[[], Reply | None] | None:
        """Return what answers a question that a page asks when it opens; None for every other message."""
        kind = request["header"]["msg_type"]
        content = self.session.unpack(request["content"]) if kind in _ASKS else None
        if not isinstance(content, dict):
            return None
        return _ASKS[kind](self, idents, request | {"content": content})

    def _kernel(self, _idents: list[bytes], _request: Message) -> Callable[[], Reply]:
        return lambda: {"status": "ok", **self.kernel_info}

    def _comms(self, _idents: list[bytes], request: Message) -> Callable[[], Reply]:
        wanted = request["content"].get("target_name")
        names = {comm_id: comm.target_name for comm_id, comm in list(self.comm_manager.comms.items())}
        found = {comm_id: {"target_name": name} for comm_id, name in names.items() if wanted in (None, name)}
        return lambda: {"status": "ok", "comms": found}

    def _opens(self, idents: list[bytes], request: Message) -> Callable[[], None] | None:
        if request["content"].get("target_name") != _CONTROL:
            return None
        return partial(self._heard, request, partial(self.comm_manager.comm_open, None, idents))

    def _says(self, _idents: list[bytes], request: Message) -> Callable[[], None] | None:
        comm = self.comm_manager.comms.get(str(request["content"].get("comm_id")))
        data = request["content"].get("data")
        if comm is None or not isinstance(data, dict):
            return None
        method = data.get("method")
        if method not in _STATE and not (method == "custom" and getattr(comm, READABLE, False)):
            return None
        # Not comm.handle_msg: it runs the hooks that IPython has for cells.
        return partial(self._heard, request, comm._msg_callback)  # noqa: SLF001 - there is no public way to it

    def _heard(self, request: Message, handle: Callable[[Message], object]) -> None:
        """Handle a message of a comm; what it publishes has this parent, and the cell's output keeps its own."""

        def handled() -> None:
            self._shell_parent.set(request)
            handle(request)

        try:
            Context().run(handled)
        except Exception:
            self.log.exception("a widget could not answer")


_ASKS: dict[str, Callable[[Any, list[bytes], Message], Callable[[], Any] | None]] = {
    "kernel_info_request": PagesAside._kernel,  # noqa: SLF001 - of this file, and so below
    "comm_info_request": PagesAside._comms,  # noqa: SLF001
    "comm_open": PagesAside._opens,  # noqa: SLF001
    "comm_msg": PagesAside._says,  # noqa: SLF001
}
