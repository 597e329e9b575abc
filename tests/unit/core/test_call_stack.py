"""Call stacks of a rank, as they are read from frames of other threads."""

from __future__ import annotations

import sys
import threading
from types import CodeType, SimpleNamespace
from typing import Any

from hvd_kernel.core import call_stack


def test_a_frame_between_two_lines_is_shown_at_its_function() -> None:
    """Python reports None for its line while it enters or leaves a block: another thread may observe that."""

    def between() -> None:
        """Never called."""

    code: CodeType = between.__code__
    frame: Any = SimpleNamespace(f_code=code, f_lineno=None, f_globals={"__name__": __name__}, f_back=sys._getframe())
    (_, call), *_ = call_stack.calls(frame)
    assert call.line == code.co_firstlineno
    (shown,) = call_stack.frames([call])
    assert shown.function == "between"
    assert shown.text == "def between() -> None:"


def test_threads_running_user_code_are_distinguished() -> None:
    here, me = sys._getframe(), threading.current_thread()
    assert call_stack.runs_user_code(me, here)
    assert call_stack.runs_user_code(None, here), "one that began after the threads were listed"
    assert not call_stack.runs_user_code(threading.Thread(daemon=True), here)
    done = threading.Event()
    library = threading.Thread(target=done.wait)
    library.start()
    try:
        inside = sys._current_frames()[library.ident or 0]
        assert not call_stack.runs_user_code(library, inside), "none of its functions is the user's"
    finally:
        done.set()
        library.join()
    assert call_stack.runs_user_code(threading.Timer(1, print), inside), "what it will call is the user's"
