"""``horovod.common.util``, ``horovod.common.exceptions`` and ``horovod.common.basics``."""

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

from hvd_kernel.core import process_sets, session, tensor
from hvd_kernel.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "EXTENSIONS",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "ccl_built",
    "check_extension",
    "check_installed_version",
    "cuda_built",
    "ddl_built",
    "env",
    "extension_available",
    "get_average_backwards_compatibility_fun",
    "get_ext_suffix",
    "get_extension_full_path",
    "get_version_mismatch_message",
    "gloo_built",
    "gpu_available",
    "is_iterable",
    "is_version_greater_equal_than",
    "mpi_built",
    "nccl_built",
    "num_rank_is_power_2",
    "probe",
    "rocm_built",
    "split_list",
]

EXTENSIONS = ["tensorflow", "torch", "mxnet"]

_PROBES = "hvd_kernel.core.build_info"
_FRONTENDS = ("tensorflow", "torch")


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Return Horovod's message for a framework of another version than the one it was compiled against."""
    return f"Framework {name} installed with version {installed_version} but found version {version}."


class HorovodVersionMismatchError(ImportError):
    """Never raised, as hvd_kernel is compiled against no framework; for programs that catch it."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name, self.version, self.installed_version = name, version, installed_version


def probe(name: str) -> Callable[..., Any]:
    """Return a function that calls the build probe ``name``; it ignores ``verbose``, which Horovod's accept."""

    def call(verbose: bool = False) -> Any:
        del verbose  # Horovod's
        return getattr(importlib.import_module(_PROBES), name)()

    call.__name__ = call.__qualname__ = name
    return call


mpi_built = probe("mpi_built")
gloo_built = probe("gloo_built")
nccl_built = probe("nccl_built")
ddl_built = probe("ddl_built")
ccl_built = probe("ccl_built")
cuda_built = probe("cuda_built")
rocm_built = probe("rocm_built")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the frontend and its framework are installed."""
    del verbose  # Horovod's
    return ext_base_name in _FRONTENDS and importlib.util.find_spec(ext_base_name) is not None


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether the framework of a frontend sees a GPU."""
    if not extension_available(ext_base_name, verbose):
        return False
    framework = importlib.import_module(ext_base_name)
    if ext_base_name == "torch":
        return bool(framework.cuda.is_available())
    return bool(framework.config.list_physical_devices("GPU"))


def get_ext_suffix() -> str:
    """Return the suffix of extension modules of this Python."""
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Return the path of the extension whose last name is the last of ``args``, beside the file ``pkg_path``."""
    *folders, name = args
    return os.path.join(os.path.dirname(pkg_path), *folders, name + get_ext_suffix())  # noqa: PTH118, PTH120 - of text


def check_installed_version(name: str, version: str, exception: Exception | None = None) -> None:
    """Do nothing: hvd_kernel is compiled against no framework, so no version can differ."""
    del name, version, exception  # Horovod's


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[int | None, bool | None], int]:
    """Return a function that merges ``op`` and the older ``average``; ``reduce_ops`` has Average and Sum.

    The function raises ValueError if both are set.
    """

    def operation(op: int | None, average: bool | None) -> int:
        chosen = tensor.reduction_of(op, average)
        if op is not None:
            return op
        return int(reduce_ops.Average if chosen == tensor.Average else reduce_ops.Sum)

    return operation


def check_extension(ext_name: str, ext_env_var: str = "", pkg_path: str = "", *args: str) -> None:
    """Check that a frontend is available.

    Raises
    ------
    ImportError
        No frontend has that name, or its framework is missing.
    """
    del ext_env_var, pkg_path, args  # Horovod's: where it was compiled
    if not extension_available(ext_name.rpartition(".")[2]):
        raise ImportError(
            f"Extension {ext_name} is not there: hvd_kernel has horovod.torch, with torch installed, and "
            "horovod.tensorflow, with tensorflow."
        )


@contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Set environment variables within the block; None leaves a variable unchanged."""
    changes = {name: value for name, value in kwargs.items() if value is not None}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether the number of ranks is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[Any], n: int) -> list[Sequence[Any]]:  # noqa: E741 - Horovod's name
    """Split into ``n`` consecutive parts of nearly equal length, the longer ones first."""
    length, longer = divmod(len(l), n)
    ends = [length * part + min(part, longer) for part in range(n + 1)]
    return [l[start:end] for start, end in pairwise(ends)]


def is_iterable(x: Any) -> bool:
    """Return whether ``x`` can be iterated over."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare two versions "1.2.3" by their first three numbers."""
    return _numbers(ver) >= _numbers(target)


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """Cache the results of a function by its arguments; other packages import this private name."""
    return functools.cache(f)


def _numbers(version: str) -> tuple[int, ...]:
    leading = [part.split("+")[0] for part in version.split(".")[:3]]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in leading)


class HorovodBasics:
    """Rank, size, init and shutdown of this process. Ignores the path of an extension: there is only one core."""

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        del pkg_path, args  # Horovod's

    Average, Sum, Adasum = tensor.Average, tensor.Sum, tensor.Adasum
    Min, Max, Product = tensor.Min, tensor.Max, tensor.Product

    HOROVOD_PROCESS_SET_ERROR_INIT = -1
    HOROVOD_PROCESS_SET_ERROR_DYNAMIC = -2
    HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET = -3
    HOROVOD_PROCESS_SET_ERROR_FOREIGN_SET = -4
    HOROVOD_PROCESS_SET_ERROR_SHUTDOWN = -5
    HOROVOD_PROCESS_SET_ERROR_EXISTING_SET = -6

    init = staticmethod(process_sets.init)
    shutdown = staticmethod(session.shutdown)
    is_initialized = staticmethod(session.is_initialized)
    start_timeline = staticmethod(session.start_timeline)
    stop_timeline = staticmethod(session.stop_timeline)
    size = staticmethod(session.size)
    rank = staticmethod(session.rank)
    local_size = staticmethod(session.local_size)
    local_rank = staticmethod(session.local_rank)
    cross_size = staticmethod(session.cross_size)
    cross_rank = staticmethod(session.cross_rank)
    is_homogeneous = staticmethod(session.is_homogeneous)
    mpi_threads_supported = staticmethod(probe("mpi_threads_supported"))
    mpi_enabled = staticmethod(probe("mpi_enabled"))
    mpi_built = staticmethod(mpi_built)
    gloo_enabled = staticmethod(probe("gloo_enabled"))
    gloo_built = staticmethod(gloo_built)
    nccl_built = staticmethod(nccl_built)
    ddl_built = staticmethod(ddl_built)
    ccl_built = staticmethod(ccl_built)
    cuda_built = staticmethod(cuda_built)
    rocm_built = staticmethod(rocm_built)
