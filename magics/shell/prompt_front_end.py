"""The front end of a prompt: the notebook's input box, or a terminal."""

from __future__ import annotations

import getpass
import signal
from typing import TYPE_CHECKING, Any, Protocol

import zmq

if TYPE_CHECKING:
    from hvd_kernel.magics.display.writer import Writer

END_OF_INPUT = "\x04"
"""What a front end sends for Ctrl-D, and what stands for it here."""


class PromptFrontEnd(Protocol):
    """Shows the cell's output and answers one prompt at a time."""

    def say(self, text: str, stream: str = "stdout") -> None:
        """Write to the cell that runs."""

    def ask(self, text: str, *, password: bool) -> None:
        """Show the prompt."""

    def poll(self) -> str | None:
        """Return the line if it is there."""


class NotebookFrontEnd:
    """A notebook's input box."""

    def __init__(self, writer: Writer, kernel: Any) -> None:
        self.say = writer.say
        self._kernel = kernel
        self._question = ""

    def ask(self, text: str, *, password: bool) -> None:
        """Send the question to the front end that runs the cell; late answers to earlier ones are thrown away."""
        kernel = self._kernel
        while self._reply() is not None:
            pass
        ident = kernel._get_shell_context_var(kernel._shell_parent_ident)  # noqa: SLF001 - as its own raw_input does
        content = {"prompt": text, "password": password}
        sent = kernel.session.send(
            kernel.stdin_socket, "input_request", content, kernel.get_parent("shell"), ident=ident
        )
        self._question = sent["header"]["msg_id"]

    def poll(self) -> str | None:
        """Return the line if it has come; one that names another question does not count."""
        reply = self._reply()
        if reply is None or reply["parent_header"].get("msg_id", self._question) != self._question:
            return None
        return str(reply["content"].get("value", ""))

    def _reply(self) -> dict[str, Any] | None:
        reply: dict[str, Any] | None = self._kernel.session.recv(self._kernel.stdin_socket, zmq.NOBLOCK)[1]
        return reply


class TerminalFrontEnd:
    """A terminal's own line, which blocks; Ctrl-C there is a press of the interrupt key."""

    def __init__(self, writer: Writer) -> None:
        self.say = writer.say
        self._question: tuple[str, bool] = "", False

    def ask(self, text: str, *, password: bool) -> None:
        """Remember the question."""
        self._question = text, password

    def poll(self) -> str | None:
        """Ask it."""
        text, password = self._question
        pressed = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return getpass.getpass(text) if password else input(text)
        except EOFError:
            return END_OF_INPUT
        except KeyboardInterrupt:
            if callable(pressed):
                pressed(signal.SIGINT, None)
            return None
        finally:
            signal.signal(signal.SIGINT, pressed)


def front_end_at(writer: Writer) -> PromptFrontEnd | None:
    """Return the front end that can be asked for a line, None where nobody is there to answer."""
    if writer.terminal:
        return TerminalFrontEnd(writer)
    return NotebookFrontEnd(writer, writer.kernel) if writer.interactive else None
