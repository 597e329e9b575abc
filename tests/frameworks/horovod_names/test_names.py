"""Every module and public name of Horovod 0.28.1: works, raises when called, is not here, or needs another framework."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hvd_kernel import compat
from hvd_kernel.compat import plumbing
from hvd_kernel.compat.finder import target_of
from hvd_kernel.core.process_sets import global_process_set
from hvd_kernel.core.tensor import Average
from hvd_kernel.formatting.install_command import install_command
from hvd_kernel.torch.compression import Compression

HERE = Path(__file__).parent
MODULES: dict[str, list[str]] = tomllib.loads((HERE / "modules.toml").read_text())
SIGNATURES: dict[str, dict[str, Any]] = tomllib.loads((HERE / "signatures.toml").read_text())
DEFAULTS = {"Compression.none": Compression.none, "global_process_set": global_process_set, "Average": Average}
CALLED = [
    (module, name, taken)
    for module, rows in SIGNATURES.items()
    for name, taken in rows.items()
    if taken and name != "raises"
]
VALUES = [(module, name) for module, rows in SIGNATURES.items() for name, taken in rows.items() if taken == ""]
RAISES = [(module, name) for module, rows in SIGNATURES.items() for name in rows.get("raises", ())]


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()


def named(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def below(name: str) -> str:
    return ".".join(name.split(".")[:2])


def first_missing(name: str) -> str:
    """The first of the packages that lead to it which is not there."""
    parts = name.split(".")
    return next(each for end in range(1, len(parts) + 1) if (each := ".".join(parts[:end])) not in MODULES["works"])


@pytest.mark.parametrize("kind", ["works", "raises"])
def test_every_module_can_be_imported(kind: str) -> None:
    for name in MODULES[kind]:
        assert importlib.util.find_spec(name) is not None, name
        module = importlib.import_module(name)
        assert isinstance(module, ModuleType)
        assert sys.modules[name] is module
        assert module.__name__ == (target_of(name) if kind == "works" else name)


def test_name_of_a_package_is_its_submodule() -> None:
    """``from horovod.runner.util import network``: Python looks up submodules under the real name of the package."""
    for name in MODULES["works"] + MODULES["raises"]:
        package, _, last = name.rpartition(".")
        if package:
            assert named(package, last) is importlib.import_module(name), name


def test_modules_of_other_frameworks_report_their_absence() -> None:
    for name in MODULES["not_for_torch"]:
        with pytest.raises(
            ModuleNotFoundError,
            match=f"No module named '{first_missing(name)}': hvd_kernel stands in",
        ) as caught:
            importlib.import_module(name)
        assert caught.value.name == first_missing(name)
    missing = {first_missing(name) for name in MODULES["not_for_torch"]}
    assert {importlib.util.find_spec(name) for name in missing} == {None}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("TensorFlow", "needs_tensorflow"),
        ("TensorFlow", "not_with_tensorflow"),
        ("Keras", "needs_keras"),
        ("MXNet", "needs_mxnet"),
        ("PySpark", "needs_pyspark"),
    ],
)
def test_modules_of_other_frameworks_name_what_to_install(name: str, kind: str) -> None:
    package = name.lower()
    extra = package.removeprefix("py")
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.origin is not None:
        pytest.skip(f"{name} is here")
    for module in MODULES[kind]:
        with pytest.raises(
            ModuleNotFoundError, match=rf"needs {name}\b.*: {re.escape(install_command(extra))}"
        ) as caught:
            importlib.import_module(module)
        assert caught.value.name == package


def test_lists_of_modules_and_names_are_complete() -> None:
    """Each module once; the product's own table has the same modules and names as the facts."""
    listed = [name for names in MODULES.values() for name in names]
    assert (len(listed), len(set(listed))) == (150, 150)
    assert len([name for name in listed if "._" not in name]) == 146, "the public ones"
    assert set(SIGNATURES) <= set(MODULES["works"] + MODULES["raises"])
    table = {
        (module, name) for module in plumbing.PLUMBING for name in plumbing.names(module) if not name.endswith("!")
    }
    assert table == {each for each in RAISES if "." not in each[1]}
    assert {module for module in plumbing.PLUMBING if module not in MODULES["works"]} == set(MODULES["raises"])


@pytest.mark.parametrize("module", SIGNATURES)
def test_signatures_accept_horovods_arguments(module: str) -> None:
    wrong = []
    for where, name, taken in CALLED:
        if where == module and (why := differs(named(module, name), taken)):
            wrong.append(f"{name}{taken}: {why}")
    assert not wrong
    for where, name in VALUES:
        assert where != module or named(module, name) is not None or name == "elastic"


def differs(ours: Any, taken: str) -> str:
    """Return why a call that Horovod accepts would mean something else in our function; empty if it does not."""
    mine = list(inspect.signature(ours).parameters.values())
    arguments = ast.parse(f"def f{taken}: ...").body[0].args  # type: ignore[attr-defined]
    theirs = [one.arg for one in arguments.args]
    defaults = [None] * (len(theirs) - len(arguments.defaults)) + [ast.unparse(one) for one in arguments.defaults]
    some = {one.kind for one in mine}
    rest = [one for one in (arguments.vararg, arguments.kwarg) if one]
    if arguments.vararg and not some & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_OR_KEYWORD}:
        return "ours takes no more positions"
    if arguments.kwarg and inspect.Parameter.VAR_KEYWORD not in some:
        return "ours takes no more keywords"
    for at, (name, default) in enumerate(zip(theirs, defaults, strict=True)):
        if at >= len(mine) or mine[at].name != name:
            return f"ours has {[one.name for one in mine]}"
        if default is not None and mine[at].default != DEFAULTS.get(default, value(default)):
            return f"{name} is {mine[at].default!r}"
    required = [one.name for one in mine[len(theirs) :] if one.default is one.empty and one.kind < one.VAR_POSITIONAL]
    return f"ours needs {required}" if required and not rest else ""


def value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


@pytest.mark.parametrize("module", {module: None for module, _ in RAISES})
def test_plumbing_raises_one_error_when_called(module: str) -> None:
    for where, name in RAISES:
        if where == module:
            found = named(module, name)
            assert found is named(module, name), "the same each time"
            with pytest.raises(plumbing.HorovodOnly, match=rf"^{module}\.{name} .+ does not have it\. Instead: .+\.$"):
                found()


def test_internal_classes_can_be_caught_derived_and_tested() -> None:
    from horovod.runner.common.service.task_service import BasicTaskService, CommandOutputNotCaptured
    from horovod.runner.common.util.network import NoValidAddressesFound

    class Mine(BasicTaskService):
        def __init__(self) -> None:
            """Do not call the base class, which raises."""

    assert not isinstance(1, BasicTaskService)
    with pytest.raises(plumbing.HorovodOnly, match="BasicTaskService asks Horovod's hosts"):
        Mine()
    for kind in (CommandOutputNotCaptured, NoValidAddressesFound):
        with pytest.raises(kind, match="raised"):
            raise kind("raised")


def test_plumbing_as_a_program_refuses_too() -> None:
    import runpy

    with pytest.raises(
        plumbing.HorovodOnly, match=r"horovod\.runner\.run_task\.main .* call horovod\.run\(func, np=4\)"
    ):
        runpy.run_module("horovod.runner.run_task", run_name="__main__")


def test_unknown_names_are_no_attributes() -> None:
    import horovod.runner.http
    import horovod.torch as hvd

    for module in (hvd, hvd.mpi_ops, horovod, horovod.runner, horovod.runner.http, horovod.runner.http.http_server):
        assert not hasattr(module, "nothing")
        assert not hasattr(module, "__wrapped__")
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            module.nothing  # noqa: B018
