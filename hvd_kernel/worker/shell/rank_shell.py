"""IPython's shell on a rank: releases the peers before it formats a traceback, keeps few results and limits displays.

A result may hold tensors, and GPU memory is scarce, so a rank keeps few of them, under IPython's names and the
notebook's numbers: ``_``, ``Out[7]``, ``_7``, ``In[7]``.

Displays are limited in number and in updates per second; widgets are sent as text of their last state. An update
replaces the stored display, so only the last one matters; earlier ones between two ticks are dropped.

IPython shows errors that end a cell, and errors that it displays while the cell continues, by the same methods. A
failing ``_repr_html_``, a script of ``%run``, ``showtraceback()`` in an ``except`` block and a callback are displayed;
only the cell's own result has the error that ends it (``CellError``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from types import CodeType
from typing import Any

from ipykernel.compiler import XCachingCompiler
from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.jsonutil import encode_images, json_clean
from ipykernel.zmqshell import ZMQDisplayPublisher, ZMQInteractiveShell
from IPython.core.history import HistoryManager
from traitlets import Type

import hvd_kernel
from hvd_kernel.core import call_stack
from hvd_kernel.errors import message_of
from hvd_kernel.formatting.units import plural
from hvd_kernel.protocol.messages import LEFT_OUT_TYPE

KEPT_RESULTS = 3
"""Number of results that a rank keeps: ``_``, ``__`` and ``___``, which ``Out`` has by number."""

_UNDERSCORES = ("_", "__", "___")


MAX_DISPLAYS = 200
MAX_BYTES = 32 << 20
"""Limits of a cell; the notebook gets the number of displays that were left out."""

_VIEW = "application/vnd.jupyter.widget-view+json"


class RankDisplay(ZMQDisplayPublisher):
    """Display publisher that uses the rank's output, so that text and displays keep their order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._updates: dict[str, dict[str, Any]] = {}
        self._widgets: dict[str, tuple[Any, dict[str, Any]]] = {}  # display_id -> widget, and the data shown
        self._shown = self._bytes = self._left_out = 0

    def publish(  # type: ignore[override]
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **kwargs: Any,
    ) -> None:
        """Send a display, or store an update for the next tick."""
        output = self.shell.kernel.output
        transient = dict(transient or {})
        if update:
            images = encode_images(data)  # type: ignore[no-untyped-call]
            content = {"data": images, "metadata": metadata or {}, "transient": transient}
            self._updates[transient["display_id"]] = json_clean(content)  # type: ignore[no-untyped-call]
            output.at_tick(self._send_updates)
            return
        self._shown += 1
        self._bytes += sum(len(body) for body in data.values() if isinstance(body, str | bytes))
        if self._shown > MAX_DISPLAYS or self._bytes > MAX_BYTES:
            self._left_out += 1
            return
        if widget := _widget(data):
            transient.setdefault("display_id", f"widget-{widget.model_id}")
            self._widgets[transient["display_id"]] = widget, dict(data)
        output.flush()
        super().publish(data, metadata, transient=transient, **kwargs)  # type: ignore[no-untyped-call]

    def clear_output(self, wait: bool = False) -> None:
        """Clear the output of the cell."""
        output = self.shell.kernel.output
        output.flush()
        self._reset()
        super().clear_output(wait)  # type: ignore[no-untyped-call]
        output.restart()

    @contextmanager
    def during(self) -> Iterator[None]:
        """Capture the displays of a cell until the block ends."""
        self._reset()
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        """Send the last state of updated displays and widgets, and the number of displays left out."""
        for display_id, (widget, shown) in self._widgets.items():
            if (text := repr(widget)) != shown.get("text/plain"):
                self.publish({**shown, "text/plain": text}, transient={"display_id": display_id}, update=True)
        self._send_updates()
        if self._left_out:
            self.shell.kernel.output.send(LEFT_OUT_TYPE, {"displays": self._left_out})
        self._reset()

    def _reset(self) -> None:
        self._updates, self._widgets = {}, {}
        self._shown = self._bytes = self._left_out = 0

    def _send_updates(self) -> None:
        while self._updates:  # the main thread may add more meanwhile
            self.shell.kernel.output.send("update_display_data", self._updates.popitem()[1])

    def _flush_streams(self) -> None:
        """Do nothing: ``publish`` flushes."""


def _widget(data: dict[str, Any]) -> Any:
    """Return the ipywidgets object of a display; its model is in this process, so no front end can show it."""
    widgets = sys.modules.get("ipywidgets.widgets.widget")
    model = data.get(_VIEW, {}).get("model_id")
    return widgets._instances.get(model) if widgets is not None else None  # noqa: SLF001 - the public way is deprecated


class RankDisplayHook(ZMQShellDisplayHook):
    """Display hook that keeps the latest results."""

    shell: Any  # an InteractiveShell, never None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "cache_size": KEPT_RESULTS})  # type: ignore[no-untyped-call]

    def cull_cache(self) -> None:
        """Release the oldest results; the base class warns, and orders by number, which another kernel starts again."""
        kept = self.shell.user_ns["_oh"]
        self._release(list(kept)[: len(kept) - KEPT_RESULTS + 1])

    def forget(self) -> None:
        """Release all results."""
        self._release(list(self.shell.user_ns["_oh"]))
        for name in _UNDERSCORES:
            result = getattr(self, name)
            for names in (self.shell.user_ns, self.shell.user_ns_hidden):
                if names.get(name) is result:
                    names[name] = ""
            setattr(self, name, "")

    def _release(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.shell.user_ns["_oh"].pop(number, None)
            for names in (self.shell.user_ns, self.shell.user_ns_hidden):
                names.pop(f"_{number}", None)


class RankHistory(HistoryManager):
    """Inputs of this rank's cells, each at the notebook's number of the cell."""

    def align(self, number: int) -> None:
        """Record the next cell's input at this number; cells of the notebook itself leave a gap."""
        for inputs in (self.input_hist_parsed, self.input_hist_raw):
            del inputs[number:]  # another kernel's cells, or an earlier part of this one
            inputs.extend([""] * (number - len(inputs)))

    def forget(self) -> None:
        """Drop IPython's records of cells except input and result: text, and rows for a database."""
        for records in (self.outputs, self.exceptions, self.output_hist_reprs, self.db_input_cache):
            records.clear()

    def _get_range_session(self, *args: Any, **kwargs: Any) -> Iterable[tuple[int, int, Any]]:
        rows: Iterable[tuple[int, int, Any]] = super()._get_range_session(*args, **kwargs)
        return (row for row in rows if row[2] and row[2] != ("", None))


class CellError:
    """State of one rank's shell: the result of the cell, and whether its code or a callback runs."""

    def __init__(self) -> None:
        self._active = False  # a cell is being transformed, compiled or run
        self._callbacks = 0  # nested callbacks of IPython's events
        self._result: Any = None  # of the cell, set by its first statement: nested cells have their own
        self._caller: CodeType | None = None  # the code that calls a client's function, which is not a cell

    @contextmanager
    def cell(self) -> Iterator[None]:
        """Mark the block as one cell."""
        self._active, self._result, self._callbacks = True, None, 0
        try:
            yield
        finally:
            self._active, self._result = False, None

    @contextmanager
    def call(self, caller: CodeType) -> Iterator[None]:
        """Mark the block as a call of a function, whose error reaches ``caller``."""
        self._caller = caller
        try:
            yield
        finally:
            self._caller = None

    @contextmanager
    def callback(self) -> Iterator[None]:
        """Mark the block as callbacks of an event of IPython's."""
        self._callbacks += 1
        try:
            yield
        finally:
            self._callbacks -= 1

    def begin_statements(self, result: Any) -> None:
        """Record the result of the cell: that of the outermost code that runs."""
        if self._active and not self._callbacks and self._result is None:
            self._result = result

    def ends_cell(self, error: BaseException) -> bool:
        """Return whether an error that IPython is about to show ends the cell, or the call."""
        if self._caller is not None:
            trace = error.__traceback__
            return trace is not None and trace.tb_frame.f_code is self._caller
        if not self._active or self._callbacks:
            return False
        if self._result is None:
            return True  # the code cannot be transformed or compiled
        return error is self._result.error_in_exec or error is self._result.error_before_exec


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
        """Record the package of each frame that IPython's formatter shows."""
        super().init_traceback_handlers(custom_exceptions)
        self.packages: dict[str, str] = {}  # by the text of a frame, for the traceback being shown
        original = self.InteractiveTB.format_record

        def format_record(record: Any) -> str:
            text = str(original(record))
            self.packages[text] = call_stack.package_of(record.filename or "")
            return text

        vars(self.InteractiveTB)["format_record"] = format_record

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        """Show a traceback without the inner calls of libraries; the full one is written to the log.

        The traceback that ends the cell becomes the cell's failure; any other one is displayed as text, in order.
        """
        kernel = self.kernel
        cell, in_task = kernel.control.latest.cell, kernel.control.in_task
        hint = f"%hvdlogs{f' --cell {cell}' * bool(cell)} shows them"
        is_full = self.InteractiveTB.mode == "Verbose" or in_task
        shown = stb if is_full else folded(stb, self.packages, hint)
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
        """Print the message of a magic, unless it ends the cell, whose failure then contains it."""
        if self.cell_error.ends_cell(exc) and not self.kernel.control.in_task:
            self.kernel.for_the_log.append(f"UsageError: {exc}")
        else:
            super().show_usage_error(exc)  # type: ignore[no-untyped-call]

    async def run_ast_nodes(self, *args: Any, **kwargs: Any) -> bool:
        """Run statements; the first ones in a cell belong to the cell itself."""
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
        """Record nothing: IPython would keep all printed text for the lifetime of the rank."""
        yield

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        """Show an error; one that ends the cell releases the peers first, and an interrupt gets no traceback."""
        control, error = self.kernel.control, (exc_tuple or sys.exc_info())[1]
        if error is not None and self.cell_error.ends_cell(error):
            control.on_raise(error)
        if error is not None and control.is_interrupt(error):
            self._get_exc_info(exc_tuple)  # type: ignore[no-untyped-call] # for %debug
            return
        with self.kernel.debugging.suspended(), control.showing_error():
            super().showtraceback(exc_tuple, *args, **kwargs)

    def _format_exception_for_storage(self, exception: BaseException, *_: Any, **__: Any) -> dict[str, Any]:
        """Format nothing: IPython would format each traceback again, for a history that a rank does not have."""
        return {"ename": type(exception).__name__, "evalue": message_of(exception), "traceback": []}

    def payloadpage_page(self, strg: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None) -> None:  # noqa: ARG002 - IPython's
        """Print text that IPython would show in a pager: %prun, ``model?``, %psource."""
        data = strg if isinstance(strg, dict) else {"text/plain": strg}
        if "text/plain" in data:
            self.set_next_input("\n".join(data["text/plain"].splitlines()[max(0, start) :]))
        else:
            self.display_pub.publish(data)

    def set_next_input(self, text: str, replace: bool = False) -> None:  # noqa: ARG002 - IPython's
        """Print text that IPython would write into a cell, which a rank cannot do: %load, %recall."""
        sys.stdout.write(f"{text}\n")

    def ask_exit(self) -> None:  # IPython's name
        """End the cell, as sys.exit() does, for exit() and quit(): a rank exits with its cluster."""
        raise SystemExit

    def debugger(self, force: bool = False) -> None:
        """Open the rank's debugger at the last exception, for %debug and %pdb."""
        if force or self.call_pdb:
            self.kernel.debugging.post_mortem()


class RankCompiler(XCachingCompiler):
    """Compiler that gives a cell the same file name on every rank and in every run, since warnings show it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        self._earlier: set[str] = set()  # files of cells that an earlier kernel has numbered

    def start_numbering(self) -> None:
        """Mark all cells so far as an earlier kernel's: another kernel numbers the following ones."""
        self._earlier = set(self._filename_map)

    def cache(self, transformed_code: str, number: int = 0, raw_code: str | None = None) -> str:
        """Register a block of code; its name may have been used for an earlier kernel's cell."""
        name = super().cache(transformed_code, number, raw_code)
        self._earlier.discard(name)
        return name

    def format_code_name(self, name: str) -> tuple[str, str] | None:
        """Return the label of a cell in tracebacks: ``Cell``, ``In[4]``."""
        label = super().format_code_name(name)
        return (label[0], f"{label[1]} (earlier kernel)") if label and name in self._earlier else label

    def get_code_name(self, raw_code: str, code: str, number: int) -> str:
        """Return the file name of a cell, without this process's id."""
        name: str = super().get_code_name(raw_code, code, number)  # type: ignore[no-untyped-call]
        return name.replace(f"ipykernel_{os.getpid()}", "ipykernel_0")


def folded(parts: Sequence[str], packages: Mapping[str, str], hint: str) -> list[str]:
    """Return a traceback without the inner frames of libraries, except the one that raised, unless it is ours. Pure.

    Parameters
    ----------
    parts
        The traceback: one text per frame, outermost first, and other texts between the frames of two exceptions.
    packages
        Text of a frame -> its package.
    hint
        How to show the full traceback.
    """
    if "" not in (packages.get(part) for part in parts):
        return list(parts)  # no frame is the user's: any of them may explain the error
    shown: list[str] = []
    runs = [(library, list(run)) for library, run in groupby(parts, lambda part: bool(packages.get(part)))]
    for (library, run), (_, following) in zip(runs, [*runs[1:], (False, [""])], strict=True):
        raised = library and following[0] not in packages and packages[run[-1]] != hvd_kernel.__name__
        left_out, kept = (run[:-1], run[-1:]) if raised else (run, []) if library else ([], run)
        shown += [_fold(left_out, packages, hint)] * bool(left_out) + kept
    return shown


def _fold(frames: Sequence[str], packages: Mapping[str, str], hint: str) -> str:
    names = " and ".join(dict.fromkeys(packages[frame] for frame in frames))
    return f"… {plural(len(frames), 'frame')} in {names} ({hint})\n"
