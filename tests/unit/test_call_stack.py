"""Call stacks of a rank, as they are read from frames of other threads."""

from __future__ import annotations

import sys
from types import CodeType, SimpleNamespace
from typing import Any

from hvd_kernel.core.stacks import call_stack


def test_a_frame_between_two_lines_is_shown_at_its_function() -> None:
    """Python says None for its line while it enters or leaves a block: of another thread that may be seen."""

    def between() -> None:
        """Never called."""

    code: CodeType = between.__code__
    frame: Any = SimpleNamespace(f_code=code, f_lineno=None, f_globals={"__name__": __name__}, f_back=sys._getframe())
    (_, call), *_ = call_stack.calls(frame)
    assert call.line == code.co_firstlineno
    (shown,) = call_stack.frames([call])
    assert shown.function == "between"
    assert shown.text == "def between() -> None:"
