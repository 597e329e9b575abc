"""Completion and inspection in rank cells, also while the main thread runs a cell on the ranks.

ipykernel handles completion and inspection on the main thread in order of arrival: during a cell, the reply would be
sent after the cell's end. The ranks can be queried from any thread, so the shell channel's thread handles these
requests, and passes all others to the main thread, in order.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ipykernel.ipkernel import IPythonKernel

from hvd_kernel.magics import names_of

_REPLIES = {"complete_request": "complete_reply", "inspect_request": "inspect_reply"}
Reply = dict[str, Any]


class ConcurrentIntrospection(IPythonKernel):
    """ipykernel's kernel, which queries the ranks about names in rank cells."""

    shell: Any
    session: Any

    def __init__(self, **kwargs: Any) -> None:
        self._request: dict[str, Any] | None = None  # the one that the main thread handles
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
        """Handle queries to the ranks in this thread during a cell; pass other requests on."""
        if self.in_cell:
            idents, request, answer = self._read(msg)
            if answer is not None:
                await self._reply(idents, request, answer)
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

    def _read(self, msg: list[Any]) -> tuple[list[bytes], dict[str, Any], Callable[[], Reply] | None]:
        idents, request = self._peek(msg)
        header = request.get("header", {"msg_type": ""})
        if header["msg_type"] not in _REPLIES or header.get("subshell_id"):
            return idents, request, None
        return idents, request, self._answer_of_ranks(header["msg_type"], self.session.unpack(request["content"]))

    async def _reply(self, idents: list[bytes], request: dict[str, Any], answer: Callable[[], Reply]) -> None:
        self._publish_shell_status("busy", request)
        content = await asyncio.get_running_loop().run_in_executor(None, answer)
        self.session.send(self.shell_stream, _REPLIES[request["header"]["msg_type"]], content, request, idents)
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
