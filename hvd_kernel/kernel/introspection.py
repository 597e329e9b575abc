"""Completion and inspection in rank cells, answered while the main thread drives a cell on the ranks.

ipykernel answers completion and inspection on the main thread, one after the other: while a cell runs, the answer would
come after its end. The ranks can be asked from any thread, so the shell channel's thread answers these requests itself
and hands all others to the main thread, in their order.
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
    """ipykernel's kernel, which asks the ranks about names in rank cells."""

    shell: Any
    session: Any

    def __init__(self, **kwargs: Any) -> None:
        self._working: dict[str, Any] | None = None  # the request that the main thread is answering
        self._telling = threading.Lock()
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]

    @property
    def in_cell(self) -> bool:
        """True while the main thread runs a cell."""
        working = self._working
        return working is not None and working["header"]["msg_type"] == "execute_request"

    def do_complete(self, code: str, cursor_pos: int | None) -> Any:
        """Complete a name; in a rank cell with what the ranks have."""
        at = len(code) if cursor_pos is None else cursor_pos
        asked = self._question("complete_request", {"code": code, "cursor_pos": at})
        return asked() if asked else super().do_complete(code, cursor_pos)  # type: ignore[no-untyped-call]

    def do_inspect(self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()) -> Any:
        """Describe a name; in a rank cell what it is on the ranks."""
        content = {"code": code, "cursor_pos": cursor_pos, "detail_level": detail_level}
        asked = self._question("inspect_request", content)
        if asked:
            return asked()
        return super().do_inspect(code, cursor_pos, detail_level, omit_sections)  # type: ignore[no-untyped-call]

    async def shell_channel_thread_main(self, msg: list[Any]) -> None:
        """Answer what the ranks can be asked at once, hand on the rest."""
        if self.in_cell:
            idents, request, asked = self._read(msg)
            if asked is not None:
                await self._answer_now(idents, request, asked)
                return
        await super().shell_channel_thread_main(msg)  # type: ignore[no-untyped-call]

    def _publish_status(self, status: str, channel: str, parent: dict[str, Any] | None = None) -> None:
        """Note which request the main thread handles."""
        with self._telling:
            if channel == "shell" and threading.current_thread() is threading.main_thread():
                self._working = (parent or self.get_parent(channel)) if status == "busy" else None  # type: ignore[no-untyped-call]
            super()._publish_status(status, channel, parent)  # type: ignore[no-untyped-call]
            if channel == "control" and status == "idle":
                self._still_busy("control", parent)

    def _question(self, kind: str, content: dict[str, Any]) -> Callable[[], Reply] | None:
        """Return what answers a question about a name in a rank cell; None for every other question."""
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
        """Return a request whose content is still packed; {} for what is not signed: ipykernel says so."""
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
        return idents, request, self._question(header["msg_type"], self.session.unpack(request["content"]))

    async def _answer_now(self, idents: list[bytes], request: dict[str, Any], asked: Callable[[], Reply]) -> None:
        self._tell("busy", request)
        content = await asyncio.get_running_loop().run_in_executor(None, asked)
        self.session.send(self.shell_stream, _REPLIES[request["header"]["msg_type"]], content, request, idents)
        self._tell("idle", request)

    def _tell(self, status: str, request: dict[str, Any]) -> None:
        """Publish a status of our own."""
        with self._telling:
            super()._publish_status(status, "shell", request)  # type: ignore[no-untyped-call]
            if status == "idle":
                self._still_busy("shell", request)

    def _still_busy(self, channel: str, parent: dict[str, Any] | None) -> None:
        """Take an "idle" back while a cell runs: front ends take the latest status for the kernel's.

        Only then: JupyterLab passes over the states of some kinds of requests (comm_info), so it would pass over the
        "idle" of one that the main thread answers, and show this "busy" for ever. No front end passes over a cell's.
        """
        if self.in_cell:
            super()._publish_status("busy", channel, parent)  # type: ignore[no-untyped-call]
