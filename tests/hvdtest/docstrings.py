"""Docstrings of public names: their parts, what is missing, and their examples, run on ranks.

Terms.
  told     the parameters that a docstring describes: in its own section, or by "Parameters as in ``other``"
  example  what stands behind >>>; after the line "On two ranks:" its results are those of exactly two ranks
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

MODULES = ("hvd_kernel.torch", "hvd_kernel.torch.elastic", "hvd_kernel.elastic", "hvd_kernel.numpy", "hvd_kernel")
TWO = "On two ranks:"
NOT_ON_RANKS = {"hvd_kernel.run"}  # it starts ranks; a process that is one must not
_HEADING = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
_AS_IN = re.compile(r"Parameters(?P<errors> and errors)? as in ``(?P<other>\w+)``")
_GIVES = re.compile(r"(Tell|[^\n]*\b[Rr]eturns?)\b")  # a first sentence that says what comes back


def public(module: str) -> dict[str, Any]:
    """The callable names of a module's __all__ that no module before it has."""
    before = [each for other in MODULES[: MODULES.index(module)] for each in _callables(other).values()]
    return {name: each for name, each in _callables(module).items() if not any(each is one for one in before)}


def constants(module: str) -> list[str]:
    """Return the non-callable names of a module's __all__, which the module's own docstring must describe."""
    return [name for name in importlib.import_module(module).__all__ if name not in _callables(module)]


def _callables(module: str) -> dict[str, Any]:
    loaded = importlib.import_module(module)
    return {name: each for name in loaded.__all__ if callable(each := getattr(loaded, name))}


def lacking(thing: Callable[..., Any], others: Mapping[str, Callable[..., Any]]) -> list[str]:
    """Return what the docstring of a class or function does not describe; ``others``: names it may refer to."""
    doc = inspect.getdoc(thing) or ""
    wanted, told = list(_signature(thing).parameters), _told(doc, others)
    wrong = [f"{name} is not told" for name in wanted if name not in told]
    wrong += [f"{name} is told and is not a parameter" for name in _own(doc) if name not in wanted]
    if wanted and not _errors(doc, others) and not (isinstance(thing, type) and issubclass(thing, BaseException)):
        wrong.append("what it raises is not told")
    if _returns(thing) and not _GIVES.match(doc) and "Returns" not in _sections(doc):
        wrong.append("what it returns is not told")
    if ">>> " not in doc:
        wrong.append("there is no example")
    return wrong


def _signature(thing: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(thing, eval_str=False)


def _returns(thing: Callable[..., Any]) -> bool:
    return not isinstance(thing, type) and _signature(thing).return_annotation not in {"None", inspect.Signature.empty}


def _sections(doc: str) -> dict[str, str]:
    parts = _HEADING.split(doc)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _own(doc: str) -> list[str]:
    lines = [line for line in _sections(doc).get("Parameters", "").splitlines() if line[:1].strip()]
    return [name.strip(" *") for line in lines for name in line.partition(" : ")[0].split(",")]


def _told(doc: str, others: Mapping[str, Callable[..., Any]]) -> set[str]:
    referred = _AS_IN.search(doc)
    more = _told(inspect.getdoc(others[referred["other"]]) or "", others) if referred else set()
    return {*_own(doc), *more}


def _errors(doc: str, others: Mapping[str, Callable[..., Any]]) -> bool:
    referred = _AS_IN.search(doc)
    further = bool(referred and referred["errors"]) and _errors(inspect.getdoc(others[referred["other"]]) or "", others)  # type: ignore[index]
    return "Raises" in _sections(doc) or further


# The examples: on a rank.


def run_examples() -> dict[str, str]:
    """Run every example that holds for this number of ranks; return the failures by name. All ranks call this together."""
    import hvd_kernel.torch as hvd

    wrong = {}
    for module in MODULES:
        for name, thing in public(module).items():
            if hvd.size() > 1 and f"{module}.{name}" in NOT_ON_RANKS:
                continue
            hvd.barrier()
            hvd.shutdown()  # what an example has left: other numbers of operations on the ranks, process sets
            hvd.init()
            test = example(f"{module}.{name}", inspect.getdoc(thing) or "", hvd.size())
            test.globs.update(_globals(module))
            if said := _run(test):
                wrong[test.name] = said
    return wrong


def example(name: str, doc: str, size: int) -> doctest.DocTest:
    """Return the example of a docstring: for any number of ranks, and on two ranks the example for two."""
    anywhere, _, two = doc.partition(TWO)
    return doctest.DocTestParser().get_doctest(anywhere + (two if size == 2 else ""), {}, name, None, 0)


def _globals(module: str) -> dict[str, Any]:
    frontend = "hvd_kernel.numpy" if module == "hvd_kernel.numpy" else "hvd_kernel.torch"
    given = {"hvd_kernel": "hvd_kernel", "hvd": frontend, "torch": "torch", "np": "numpy"}
    return {name: importlib.import_module(each) for name, each in given.items()}


def _run(test: doctest.DocTest) -> str:
    """Return the failure of one test; it has its own folder, and leaves the environment unchanged."""
    said, before = io.StringIO(), dict(os.environ)
    runner = doctest.DocTestRunner(verbose=False)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        runner.run(test, out=said.write)
    os.environ.clear()
    os.environ.update(before)
    return said.getvalue()
