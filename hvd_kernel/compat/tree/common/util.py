"""``horovod.common.util``: what programs and libraries ask of it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from hvd_kernel.core import tensor

EXTENSIONS = ["tensorflow", "torch", "mxnet"]

_PROBES = "hvd_kernel.core.build_info"
_HERE = ("tensorflow", "torch")


def probe(name: str) -> Callable[..., Any]:
    """Return a question about the build, under its name; ``verbose``, which Horovod's take here, says nothing."""

    def ask(verbose: bool = False) -> Any:
        del verbose  # Horovod's
        return getattr(importlib.import_module(_PROBES), name)()

    ask.__name__ = ask.__qualname__ = name
    return ask


mpi_built = probe("mpi_built")
gloo_built = probe("gloo_built")
nccl_built = probe("nccl_built")
ddl_built = probe("ddl_built")
ccl_built = probe("ccl_built")
cuda_built = probe("cuda_built")
rocm_built = probe("rocm_built")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Tell whether there is a frontend of that name that can be used."""
    del verbose  # Horovod's
    return ext_base_name in _HERE and importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Tell whether that frontend sees a GPU."""
    if not extension_available(ext_base_name, verbose):
        return False
    framework = importlib.import_module(ext_base_name)
    if ext_base_name == "torch":
        return bool(framework.cuda.is_available())
    return bool(framework.config.list_physical_devices("GPU"))


def get_ext_suffix() -> str:
    """Return how the file of an extension ends in this Python."""
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Return the path of the extension whose last name is the last of ``args``, beside the file ``pkg_path``."""
    *folders, name = args
    return os.path.join(os.path.dirname(pkg_path), *folders, name + get_ext_suffix())  # noqa: PTH118, PTH120 - of text


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Do nothing: hvd_kernel is compiled against no framework, so none can be of another version."""
    del name, version, exception  # Horovod's


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """Return a function that makes one of ``op`` and the older ``average``; ``reduce_ops`` has Average and Sum.

    It raises ValueError where both are given.
    """

    def operation(op: int | None, average: bool | None) -> int:
        chosen = tensor.reduction_of(op, average)
        if op is not None:
            return op
        return int(reduce_ops.Average if chosen == tensor.Average else reduce_ops.Sum)

    return operation


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "", *args: str) -> None:
    """Refuse a frontend that is not there.

    Raises
    ------
    ImportError
        There is none of that name.
    """
    del ext_env_var, pkg_path, args  # Horovod's: where it was compiled
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(
            f"Extension {ext_name} is not there: hvd_kernel has horovod.torch, with torch installed, and "
            "horovod.tensorflow, with tensorflow."
        )


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set variables of the environment within the block; None is left alone."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def num_rank_is_power_2(num_rank: int) -> bool:
    """Tell whether it is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Any], n: int) -> list[Sequence[Any]]:  # noqa: E741 - Horovod's name
    """Cut into ``n`` consecutive parts of nearly equal length, the longer ones first."""
    each, more = divmod(len(l), n)
    ends = [each * part + min(part, more) for part in range(n + 1)]
    return [l[start:end] for start, end in pairwise(ends)]


def is_iterable(x: Any) -> bool:
    """Tell whether it can be iterated over."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare two versions "1.2.3" by their first three numbers."""
    return _numbers(ver) >= _numbers(target)


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """Remember what a function returned for the same arguments; packages beside Horovod reach for it."""
    return functools.cache(f)


def _numbers(version: str) -> tuple[int, ...]:
    leading = [part.split("+")[0] for part in version.split(".")[:3]]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in leading)
