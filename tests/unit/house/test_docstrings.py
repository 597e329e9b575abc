"""Public docstrings describe arguments, results and errors, and have an example."""

from __future__ import annotations

import importlib
import inspect
import re

import pytest
from hvdtest.docstrings import MODULES, constants, example, lacking, public

from hvd_kernel.magics.commands.index import MAGICS
from hvd_kernel.magics.commands.table import SUBCOMMANDS, find


def good(size: int, *more: int, op: str = "Sum") -> int:
    """Return the size.

    Parameters
    ----------
    size
        A number.
    *more, op
        Others.

    Raises
    ------
    ValueError
        Never.

    Examples
    --------
    >>> good(1)
    1

    On two ranks:

    >>> good(2)
    2
    """
    del more, op
    return size


def refers(size: int, op: str = "Sum") -> int:
    """Return it twice. Parameters and errors as in ``good``.

    >>> refers(1)
    2
    """
    return size + len(op)


def half(size: int, op: str = "Sum") -> int:
    """Do it. Parameters as in ``bare``.

    Parameters
    ----------
    more : int
        It has none.
    """
    return size + len(op)


def bare(size: int) -> None:
    """Do nothing.

    Parameters
    ----------
    size
        A number.
    """
    del size


class Failed(Exception):
    """The text of an error.

    >>> Failed()
    Failed()
    """

    def __init__(self) -> None:
        super().__init__()


OTHERS = {"good": good, "bare": bare}


def test_complete_docstring_passes() -> None:
    assert [lacking(each, OTHERS) for each in (good, refers, Failed)] == [[], [], []]


def test_missing_parts_are_named() -> None:
    assert lacking(half, OTHERS) == [
        "op is not told",
        "more is told and is not a parameter",
        "what it raises is not told",
        "what it returns is not told",
        "there is no example",
    ]
    assert lacking(bare, OTHERS) == ["what it raises is not told", "there is no example"]


def test_examples_of_two_ranks_are_for_two_ranks() -> None:
    found = {size: [one.source for one in example("good", good.__doc__ or "", size).examples] for size in (1, 2, 3)}
    assert found == {1: ["good(1)\n"], 2: ["good(1)\n", "good(2)\n"], 3: ["good(1)\n"]}


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_documented(module: str) -> None:
    loaded = importlib.import_module(module)
    there = {name: getattr(loaded, name) for name in loaded.__all__}
    wrong = {name: lack for name, each in public(module).items() if (lack := lacking(each, there))}
    assert wrong == {}


@pytest.mark.parametrize("module", MODULES)
def test_module_documents_its_constants(module: str) -> None:
    doc = importlib.import_module(module).__doc__ or ""
    assert [name for name in constants(module) if f"``{name}``" not in doc] == []


ROWS = {**MAGICS, **{f"%hvd {name}": row for name, row in SUBCOMMANDS.items()}}


@pytest.mark.parametrize("name", ROWS)
def test_functions_behind_magics_have_a_working_example(name: str) -> None:
    doc = inspect.getdoc(inspect.unwrap(ROWS[name].act)) or ""
    [line] = re.findall(r"^Example: ``(.+)``\.$", doc, re.MULTILINE)
    magic, _, rest = line.partition(" ")
    options = MAGICS[magic].parse(rest)
    assert f"{line} ".startswith(f"{name} ")
    assert name in MAGICS or find(options) is ROWS[name]


@pytest.mark.parametrize("name", ROWS)
def test_functions_behind_magics_document_their_errors(name: str) -> None:
    act = inspect.unwrap(ROWS[name].act)
    raised = set(re.findall(r"\braise (\w+)\(", inspect.getsource(act)))
    told = re.findall(r"^(\w+)\n {4}\S", (inspect.getdoc(act) or "").partition("Raises\n------\n")[2], re.MULTILINE)
    assert raised <= set(told)
