"""Which frames of a rank's traceback are shown: the user's own, and of libraries the one that raised."""

from __future__ import annotations

import json
import linecache
import sys
import threading

import numpy as np
import pytest

import hvd_kernel
from hvd_kernel.core.call_stack import calls, frames, package_of
from hvd_kernel.worker.shell.rank_shell import folded

PACKAGES = {"cell 1": "", "cell 2": "", "model.py": "", "ours": "hvd_kernel", "torch a": "torch", "torch b": "torch"}
WHERE = "%hvdlogs --cell 4 shows them"


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        (["head", "cell 1", "ours", "torch a", "ours", "E"], ["head", "cell 1", f"… 3 frames in hvd_kernel and torch ({WHERE})\n", "E"]),
        (["head", "cell 1", "torch a", "torch b", "E"], ["head", "cell 1", f"… 1 frame in torch ({WHERE})\n", "torch b", "E"]),
        (["head", "cell 1", "torch b", "E"], ["head", "cell 1", "torch b", "E"]),
        (["head", "cell 1", "torch a", "model.py", "E"], ["head", "cell 1", f"… 1 frame in torch ({WHERE})\n", "model.py", "E"]),
        (["head", "cell 1", "cell 2", "E"], ["head", "cell 1", "cell 2", "E"]),
        (["head", "torch a", "torch b", "E"], ["head", "torch a", "torch b", "E"]),
        (["syntax error"], ["syntax error"]),
        (
            ["head", "torch a", "torch b", "E1", "while", "cell 1", "torch a", "torch b", "E2"],
            ["head", f"… 1 frame in torch ({WHERE})\n", "torch b", "E1", "while", "cell 1", f"… 1 frame in torch ({WHERE})\n", "torch b", "E2"],
        ),
    ],
)  # fmt: skip
def test_frames_that_are_shown(parts: list[str], shown: list[str]) -> None:
    assert folded(parts, PACKAGES, WHERE) == shown


def test_files_have_packages_but_for_the_users_own() -> None:
    assert package_of(hvd_kernel.__file__) == "hvd_kernel"
    assert package_of(np.__file__) == "numpy"
    assert package_of(json.__file__) == "json"
    assert package_of(threading.__file__) == "threading"
    assert package_of("<frozen importlib._bootstrap>") == "importlib"
    assert [package_of(own) for own in ("/home/me/train.py", "/tmp/ipykernel_0/1.py", "<string>")] == ["", "", ""]


def test_frame_without_source_lines_has_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that answers an agent ended there, and with it all messages of a driver to a rank."""
    names: dict[str, object] = {}
    exec(compile("def f():\n    return sys._getframe()", "<kept elsewhere>", "exec"), {"sys": sys}, names)
    monkeypatch.setitem(linecache.cache, "<kept elsewhere>", (1, None, None, "<kept elsewhere>"))
    [(_, call), *_] = calls(names["f"]())  # type: ignore[operator]
    [frame] = frames([call])
    assert (frame.function, frame.text) == ("f", "")
