"""Transformations of a cell's text before IPython reads it."""

from __future__ import annotations

from typing import Any

import pytest

from hvd_kernel.magics.transform import Transformer

USER = {"msg_type": "execute_request", "content": {"silent": False, "store_history": True}}
SILENT = {"msg_type": "execute_request", "content": {"silent": True, "store_history": False}}
INSPECTOR = {"msg_type": "execute_request", "content": {"silent": False, "store_history": False, "allow_stdin": True}}
NBVAL = {"msg_type": "execute_request", "content": {"silent": False, "store_history": False, "allow_stdin": False}}
ASKING = {"msg_type": "is_complete_request", "content": {"code": "x"}}


def transformed(text: str, *, auto: bool = False, request: dict[str, Any] = USER) -> str:
    transformer = Transformer(lambda: request)
    transformer.auto = auto
    return "".join(transformer(text.splitlines(keepends=True)))


def test_comments_move_below_the_magic() -> None:
    assert transformed("# NBVAL_SKIP\n\n%%hvdrun -np 4\nx = 1\n") == "%%hvdrun -np 4\n# NBVAL_SKIP\n\nx = 1\n"


@pytest.mark.parametrize("text", ["%%hvdrun -np 4", "%%hvdrun -np 4\n"])
def test_the_magic_alone_has_a_body(text: str) -> None:
    assert transformed(text) == "%%hvdrun -np 4\n\n"


@pytest.mark.parametrize("auto", [False, True])
@pytest.mark.parametrize(
    "text", ["# c\n%%time\nx\n", "%hvdauto off\n", "!ls\n", "print?\n", "?print\n", "", "# only\n", "\n"]
)
def test_magics_stay_local(text: str, *, auto: bool) -> None:
    assert transformed(text, auto=auto) == text


def test_plain_cells_move_to_the_ranks_when_auto() -> None:
    assert transformed("# c\nx = 1\n", auto=True) == "%%hvdrun\n# c\nx = 1\n"
    assert transformed("x = 1\n", auto=False) == "x = 1\n"
    assert transformed("x = 1\n", auto=True, request={}) == "%%hvdrun\nx = 1\n"
    assert transformed("x = 1\n", auto=True, request=NBVAL) == "%%hvdrun\nx = 1\n"


@pytest.mark.parametrize("request_", [SILENT, ASKING, INSPECTOR])
def test_front_end_requests_stay_local(request_: dict[str, Any]) -> None:
    assert transformed("x = 1\n", auto=True, request=request_) == "x = 1\n"


def test_magics_with_similar_names_are_not_ours() -> None:
    assert transformed("# c\n%%hvdrunner\nx\n") == "# c\n%%hvdrunner\nx\n"
