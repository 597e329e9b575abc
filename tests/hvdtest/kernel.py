"""A real kernel, driven through jupyter_client: every message of every cell is checked against the protocol.

Terms.
  outcome   everything one cell caused: reply and iopub messages, in order
  tag       a random word in the kernel's environment, which all its descendants inherit: by it leftovers are found
  figures   how long the kernel waits for what: tests have it wait longer, because the machine may be busy
  ipc       ZeroMQ over Unix sockets, in a folder of the kernel's own: of TCP ports jupyter_client finds free ones, lets
            go of them and names them to the kernel, and by the time it binds them another test may have one
"""

from __future__ import annotations

import json
import os
import queue
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from hvdtest import where
from hvdtest.cluster import GONE_S
from hvdtest.where import Silence, tagged, traced
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

import hvd_kernel.kernel

START_S = 100.0
RUN_S = 100.0
"""Generous: a wait that ends early on a busy machine is a failure without meaning."""

SHAPE: dict[str, set[str]] = {  # required fields of each message
    "status": {"execution_state"},
    "execute_input": {"code", "execution_count"},
    "stream": {"name", "text"},
    "display_data": {"data", "metadata"},
    "update_display_data": {"data", "metadata", "transient"},
    "execute_result": {"data", "metadata", "execution_count"},
    "error": {"ename", "evalue", "traceback"},
    "clear_output": {"wait"},
    "comm_open": {"comm_id", "target_name", "data"},
    "comm_msg": {"comm_id", "data"},
    "comm_close": {"comm_id"},
}
REPLY = {
    "ok": {"status", "execution_count"},
    "error": {"status", "ename", "evalue", "traceback"},
    "aborted": {"status"},
}


@dataclass(frozen=True)
class Outcome:
    """All effects of one cell."""

    reply: dict[str, Any]
    messages: list[dict[str, Any]]
    seconds: float

    def contents(self, kind: str) -> list[dict[str, Any]]:
        return [m["content"] for m in self.messages if m["msg_type"] == kind]

    def text(self, stream: str = "stdout") -> str:
        return "".join(c["text"] for c in self.contents("stream") if c["name"] == stream)

    @property
    def shown(self) -> list[str]:
        """Text of every display and result, in order."""
        return [
            m["content"]["data"]["text/plain"]
            for m in self.messages
            if m["msg_type"] in ("display_data", "execute_result")
        ]

    @property
    def error(self) -> str:
        """The traceback, without colours."""
        import re

        return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(self.reply.get("traceback", [])))

    @property
    def stored(self) -> list[dict[str, Any]]:
        """Return the outputs that a saved notebook contains."""
        kinds = ("stream", "display_data", "execute_result", "error")
        kept = [{"type": m["msg_type"], **m["content"]} for m in self.messages if m["msg_type"] in kinds]
        for output in kept:
            output.pop("execution_count", None)
            output.pop("transient", None)
        return kept

    @property
    def size(self) -> int:
        """Bytes on iopub."""
        parts = ("header", "parent_header", "metadata", "content")
        return sum(64 + sum(len(json.dumps(m[part], default=str)) for part in parts) for m in self.messages)


class Kernel:
    """A kernel that lives as long as the ``with`` block, and leaves nothing."""

    def __init__(
        self, home: Path, name: str = "hvd_kernel", env: dict[str, str] | None = None, python: Path | None = None
    ) -> None:
        """``python``: another one than pytest's own, with our package in it."""
        self.tag = f"HVD_TEST_TAG={uuid.uuid4().hex}"
        key, _, value = self.tag.partition("=")
        own = {"IPYTHONDIR": str(home / "ipython"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"), key: value}
        self._stacks = home / "stacks"
        self._env = {**os.environ, "JUPYTER_PLATFORM_DIRS": "1", **traced(self._stacks), **own, **(env or {})}
        self.ended = False  # by the test's own hand or because it hung
        self._sockets = tempfile.TemporaryDirectory(prefix="hvd-zmq-", dir="/tmp")  # a socket's path must be short
        ipc: dict[str, Any] = {"transport": "ipc", "ip": f"{self._sockets.name}/kernel"}
        specs = {} if python is None else {"kernel_spec_manager": _specs_of_another(python, home, name)}
        self.manager = KernelManager(kernel_name=name, **ipc, **specs)
        self.client: Any = None

    def __enter__(self) -> Self:
        self.manager.start_kernel(env=self._env, cwd=str(Path(__file__).parent))
        self._connect()
        return self

    def _connect(self) -> None:
        self.client = self.manager.client()
        # A clone of the manager's session restarts its message numbers: an interrupt would have the number of a cell.
        self.client.session.session = uuid.uuid4().hex
        self.client.start_channels()
        self.client.wait_for_ready(timeout=START_S)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None and where.hangs(error):
            self.hung(error)
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=kind is not None)
        self._sockets.cleanup()
        if kind is None:
            self.assert_nothing_left()

    def hung(self, error: BaseException) -> None:
        """Add the stacks of all processes to an error, and kill them."""
        self.ended = True
        where.add_stacks(error, self.tag, self._stacks)

    @contextmanager
    def figures(self, **values: object) -> Iterator[None]:
        """Have other figures in the kernel: ``cell_view_PATIENT_S=3600`` is PATIENT_S of magics/cell_view.py."""
        self.run(f"__import__('hvdtest.tidy').tidy.figures({values!r})")
        yield
        self.run("__import__('hvdtest.tidy').tidy.figures_back()")

    def restart(self) -> None:
        self.client.stop_channels()
        self.manager.restart_kernel()
        self._connect()

    def press(self) -> None:
        """Press the interrupt button, and return when the kernel has received it: later cells are not interrupted."""
        self.client.control_channel.send(self.client.session.msg("interrupt_request"))
        assert self.client.get_control_msg(timeout=60)["msg_type"] == "interrupt_reply"

    def subshell(self) -> str:
        """Make a subshell: it answers while the kernel is at a cell."""
        self.client.control_channel.send(self.client.session.msg("create_subshell_request"))
        made: str = self.client.get_control_msg(timeout=60)["content"]["subshell_id"]
        return made

    def reply_of(self, shell: str, code: str) -> dict[str, Any]:
        """Run a cell in a subshell, and return its reply; other replies that arrive meanwhile are dropped."""
        content = {"code": code, "silent": False, "store_history": False, "stop_on_error": False}
        message = self.client.session.msg("execute_request", content)
        message["header"]["subshell_id"] = shell
        self.client.shell_channel.send(message)
        return self._reply(message["header"]["msg_id"], time.monotonic() + 60)

    @property
    def pid(self) -> int:
        provisioner: Any = self.manager.provisioner
        return int(provisioner.pid)

    def run(self, code: str, *, timeout: float = RUN_S, prompts: bool = False, allow_error: bool = False) -> Outcome:
        """Run a cell as nbclient would, or with ``prompts`` as a front end that answers prompts."""
        return self.finish(self.start(code, prompts=prompts), timeout=timeout, allow_error=allow_error)

    def start(self, code: str, *, prompts: bool = False) -> tuple[str, float]:
        return self.client.execute(code, allow_stdin=prompts), time.monotonic()

    def finish(self, started: tuple[str, float], *, timeout: float = RUN_S, allow_error: bool = False) -> Outcome:
        identity, begin = started
        deadline = begin + timeout
        messages = self._iopub(identity, deadline)
        reply = self._reply(identity, deadline)
        check(messages, reply)
        outcome = Outcome(reply, messages, time.monotonic() - begin)
        silent = not allow_error and "no answer from rank" in outcome.error
        where_they_are = where.stacks(self.tag, self._stacks) if silent else ""
        assert allow_error or reply["status"] == "ok", f"{outcome.error}\n{outcome.text('stderr')}\n{where_they_are}"
        return outcome

    def finish_rest(self, started: tuple[str, float], *, timeout: float = RUN_S, allow_error: bool = False) -> Outcome:
        """Like ``finish``, for a cell of which iopub messages were taken already (their order is not checked)."""
        identity, begin = started
        messages = self._iopub(identity, begin + timeout)
        outcome = Outcome(self._reply(identity, begin + timeout), messages, time.monotonic() - begin)
        assert allow_error or outcome.reply["status"] == "ok", outcome.error
        return outcome

    def wait_for(self, *kinds: str, of: tuple[str, float] | None = None, timeout: float = 60) -> dict[str, Any]:
        """Receive iopub messages up to the first of some kinds (they are then missing in ``finish``).

        ``of``: the cell, as ``start`` returned it, whose messages count; by default any.
        """
        deadline = time.monotonic() + timeout
        while True:
            message = self._next(self.client.get_iopub_msg, deadline)
            if message["msg_type"] in kinds and (of is None or message["parent_header"].get("msg_id") == of[0]):
                return dict(message["content"])

    def _iopub(self, identity: str, deadline: float) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        while True:
            message = self._next(self.client.get_iopub_msg, deadline, messages)
            if message["parent_header"].get("msg_id") != identity:
                continue
            messages.append(message)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return messages

    def _reply(self, identity: str, deadline: float) -> dict[str, Any]:
        while True:
            message = self._next(self.client.get_shell_msg, deadline)
            if message["parent_header"].get("msg_id") == identity:
                return dict(message["content"])

    def _next(self, get: Any, deadline: float, received: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        try:
            return dict(get(timeout=max(0.01, deadline - time.monotonic())))
        except queue.Empty:
            kinds = dict(Counter(message["msg_type"] for message in received))
            ends = [str(message["content"])[-300:] for message in received[-3:]]
            silence = Silence(f"no further message in time; the cell has sent {kinds}, ending with {ends}")
            self.hung(silence)
            raise silence from None
        except pytest.fail.Exception as late:  # the test's time is over
            self.hung(late)
            raise

    def assert_nothing_left(self) -> None:
        """Assert that soon no process carries the tag."""
        await_tagged(self.tag, 0)


def _specs_of_another(python: Path, home: Path, name: str) -> KernelSpecManager:
    spec = json.loads((Path(hvd_kernel.kernel.__file__).parent / "spec" / "kernel.json").read_text())
    spec["argv"][0] = str(python)
    folder = home / "kernels" / name
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    return KernelSpecManager(kernel_dirs=[str(folder.parent)], ensure_native_kernel=False)


def check(messages: list[dict[str, Any]], reply: dict[str, Any]) -> None:
    """Assert order and shape of a cell's messages."""
    kinds = [m["msg_type"] for m in messages]
    assert messages[0]["content"].get("execution_state") == "busy", kinds
    assert kinds[1] == "execute_input", kinds
    assert kinds.count("execute_input") == 1, kinds
    assert kinds.count("status") == 2, kinds
    for message in messages:
        missing = SHAPE[message["msg_type"]] - set(message["content"])
        assert not missing, f"{message['msg_type']} lacks {missing}"
        assert {"msg_id", "session", "date", "version"} <= set(message["header"])
    assert not REPLY[reply["status"]] - set(reply)
    errors = [m["content"] for m in messages if m["msg_type"] == "error"]
    assert len(errors) == (reply["status"] == "error"), "one error message for a failed cell, none for a good one"
    if errors:
        assert (errors[0]["ename"], errors[0]["evalue"]) == (reply["ename"], reply["evalue"])


def await_tagged(tag: str, number: int) -> None:
    """Return when that many processes carry the tag."""
    deadline = time.monotonic() + GONE_S
    while len(found := tagged(tag)) != number:
        assert time.monotonic() < deadline, f"there are {found} instead of {number}"
        time.sleep(0.02)
