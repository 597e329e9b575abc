"""Frameworks that are installed: their version, and what works with it or why not. Nothing of them is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import InvalidVersion, Version

_PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True)
class Framework:
    """A framework that Horovod's users have, and what it needs here."""

    title: str
    package: str
    distributions: tuple[str, ...]
    floor: str = "0"
    plugin: str = ""  # a compiled part of ours that it needs, beside the core
    paths: str = ""  # what works


@dataclass(frozen=True)
class Installed:
    """A framework, as it is here."""

    title: str
    version: str  # "": it is not installed
    works: bool
    words: str  # what works, or why it does not


FRAMEWORKS = (
    Framework(
        "TensorFlow",
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"),
        "2.13",
        "libhvd_tf.so",
        "eager, tf.function and sessions; tensors of a GPU by way of the host",
    ),
    Framework("PyTorch", "torch", ("torch",), "2.4", paths="tensors of the CPU and of GPUs"),
    Framework(
        "MXNet",
        "mxnet",
        ("mxnet", "mxnet-cu102", "mxnet-cu112"),
        "1.9.1",
        "libhvd_mxnet.so",
        "in MXNet's engine; arrays of a GPU by way of the host",
    ),
    Framework("NumPy", "numpy", ("numpy",), "1.26", paths="arrays, and what NumPy reads as one"),
    Framework("JAX", "jax", ("jax",)),
    Framework(
        "Keras", "keras", ("keras",), "2.13", paths="Keras 3 on TensorFlow, torch and JAX; Keras 2 on TensorFlow"
    ),
)
"""Horovod's three, then others."""


def every() -> list[Installed]:
    """Look for each of ``FRAMEWORKS``."""
    return [look(each) for each in FRAMEWORKS]


def one(package: str) -> Installed:
    """Look for the framework of a package's name.

    Raises
    ------
    StopIteration
        It is none of ``FRAMEWORKS``.
    """
    return look(next(each for each in FRAMEWORKS if each.package == package))


def look(framework: Framework) -> Installed:
    """Look for a framework by its distribution and our files.

    Example: ``look(FRAMEWORKS[1])`` is ``Installed("PyTorch", "2.13.0+cpu", True, "tensors of the CPU and of GPUs")``.
    """
    here = next(_versions(framework), "")
    if not here:
        return Installed(framework.title, "", works=False, words="not installed")
    why = _why_not(framework, here)
    return Installed(framework.title, here, not why, why or framework.paths)


def _versions(framework: Framework) -> Iterator[str]:
    for distribution in framework.distributions:
        try:
            yield version(distribution)
        except PackageNotFoundError:
            continue


def _why_not(framework: Framework, here: str) -> str:
    if not (_PACKAGE / framework.package / "__init__.py").exists():
        return "hvd_kernel has no API for it"
    try:
        old = Version(here) < Version(framework.floor)
    except InvalidVersion:  # somebody's own build
        old = False
    if old:
        return f"too old: {framework.floor} or newer is needed (pip install --upgrade {framework.distributions[0]})"
    return f"{framework.plugin} was not built" if framework.plugin and not _has(framework.plugin) else ""


def _has(plugin: str) -> bool:
    core = importlib.util.find_spec("hvd_kernel._native")
    return core is not None and core.origin is not None and Path(core.origin).with_name(plugin).exists()
