"""A kernel driven by the benchmarks: run a cell, get its seconds and the bytes that came over iopub."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Self

from jupyter_client.manager import KernelManager


@dataclass
class Cell:
    """One executed cell."""

    seconds: float
    iopub_bytes: int
    messages: list[dict[str, Any]]


class Kernel:
    """``with Kernel() as kernel: kernel.run(code)``; fails on a cell that fails."""

    def __enter__(self) -> Self:
        self.manager = KernelManager(kernel_name="hvd_kernel")
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        return self

    def __exit__(self, *exc: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)

    def run(self, code: str, timeout: float = 120) -> Cell:
        """Execute; bytes are those of the raw multipart frames."""
        socket = self.client.iopub_channel.socket
        session = self.client.session
        start = time.perf_counter()
        sent = self.client.execute(code)
        size, messages = 0, []
        while True:
            if not socket.poll(int(timeout * 1000)):
                raise TimeoutError(code)
            frames = socket.recv_multipart()
            size += sum(map(len, frames))
            _, rest = session.feed_identities(frames)
            message = session.deserialize(rest)
            if message["parent_header"].get("msg_id") != sent:
                continue
            messages.append(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        seconds = time.perf_counter() - start
        reply = self.client.get_shell_msg(timeout=timeout)["content"]
        if reply["status"] != "ok":
            raise RuntimeError("\n".join(reply.get("traceback", [reply["status"]])))
        return Cell(seconds, size, messages)
