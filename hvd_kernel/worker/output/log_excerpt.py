"""An excerpt of this rank's log, for a notebook that cannot read the file: the rank is on another host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hvd_kernel.protocol import rank_log

if TYPE_CHECKING:
    from hvd_kernel.worker.shell.control import Control


def answer(control: Control, content: Mapping[str, Any], _buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return where the log is, and the excerpt. Reads files only, so it may be urgent."""
    logs = rank_log.folder(os.environ["IPYTHONDIR"])
    stream = content["stream"]
    text = rank_log.excerpt(logs, control.rank, stream, content["cell"], content["lines"])
    return {"text": text, "path": str(rank_log.path(logs, control.rank, stream))}, []
