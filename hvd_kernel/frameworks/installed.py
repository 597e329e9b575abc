"""Installed frameworks: their versions, and which features work, or why not. No framework is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.version import InvalidVersion, Version

_PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True)
class Way:
    """A feature of a framework, which some installations lack."""

    title: str
    needs: str = ""  # the package of another framework
    without: tuple[str, ...] = ()  # distributions, or suffixes of a version, that lack it
    remedy: str = ""


@dataclass(frozen=True)
class Framework:
    """A supported framework and its requirements."""

    title: str
    package: str
    distributions: tuple[str, ...]
    floor: str = "0"
    plugin: str = ""  # a compiled library of this package that it needs in addition to the core
    ways: tuple[Way, ...] = ()  # features


@dataclass(frozen=True)
class Installed:
    """State of a framework in this environment."""

    title: str
    version: str  # "": it is not installed
    works: bool
    summary: str  # the features that work and those that do not, or why the framework does not work
    ways: tuple[tuple[str, str], ...] = ()  # features, with the reason if they do not work, or ""


_BACKENDS = (("TensorFlow", "tensorflow"), ("torch", "torch"), ("JAX", "jax"))  # of Keras 3; of Keras 2 the first

FRAMEWORKS = (
    Framework(
        "TensorFlow",
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"),
        "2.13",
        "libhvd_tf.so",
        (
            Way("eager, tf.function and sessions"),
            Way(
                "tensors of a GPU by way of the host",
                without=("tensorflow-cpu",),
                remedy="pip install 'tensorflow[and-cuda]'",
            ),
        ),
    ),
    Framework(
        "PyTorch",
        "torch",
        ("torch",),
        "2.4",
        ways=(
            Way("tensors of the CPU"),
            Way("tensors of GPUs", without=("+cpu",), remedy="pip install --force-reinstall torch"),
        ),
    ),
    Framework(
        "MXNet",
        "mxnet",
        ("mxnet", "mxnet-cu102", "mxnet-cu112"),
        "1.9.1",
        "libhvd_mxnet.so",
        (
            Way("in MXNet's engine"),
            Way("arrays of a GPU by way of the host", without=("mxnet",), remedy="pip install mxnet-cu112"),
        ),
    ),
    Framework("NumPy", "numpy", ("numpy",), "1.24", ways=(Way("arrays, and what NumPy reads as one"),)),
    Framework(
        "JAX",
        "jax",
        ("jax",),
        "0.4.38",
        "libhvd_jax.so",
        (Way("in jit and outside of it"),),
    ),
    Framework(
        "Keras",
        "keras",
        ("keras",),
        "2.13",
        ways=tuple(Way(f"on {title}", package) for title, package in _BACKENDS),
    ),
)
"""The three frameworks of Horovod, then others."""


def every() -> list[Installed]:
    """Return the state of each of ``FRAMEWORKS``."""
    return [look(framework) for framework in FRAMEWORKS]


def one(package: str) -> Installed:
    """Return the state of the framework with a package name.

    Raises
    ------
    StopIteration
        The package is not in ``FRAMEWORKS``.
    """
    return look(next(framework for framework in FRAMEWORKS if framework.package == package))


def look(framework: Framework) -> Installed:
    """Return the state of a framework, from its distribution's metadata and the files of this package.

    Example: ``look(FRAMEWORKS[1]).ways`` is ``(("tensors of the CPU", ""), ("tensors of GPUs", "not in 2.13.0+cpu: pip
    install --force-reinstall torch"))``.
    """
    distribution, installed = next(_versions(framework), ("", ""))
    if not installed:
        return Installed(framework.title, "", works=False, summary="not installed")
    reason = _unusable(framework, installed)
    ways = tuple((way.title, reason or _lacks(way, distribution, installed)) for way in framework.ways)
    working = [title for title, lacks in ways if not lacks]
    if framework.ways and not working:
        reason = reason or "; ".join(f"{title}: {lacks}" for title, lacks in ways)
    lacking = [f"not {title} ({lacks})" for title, lacks in ways if lacks]
    return Installed(framework.title, installed, not reason, reason or "; ".join(working + lacking), ways)


def _versions(framework: Framework) -> Iterator[tuple[str, str]]:
    for distribution in framework.distributions:
        try:
            yield distribution, version(distribution)
        except PackageNotFoundError:
            continue


def _lacks(way: Way, distribution: str, installed: str) -> str:
    """Return why a feature does not work with an installed version, or an empty string."""
    if way.needs:
        other = one(way.needs)
        return "" if other.version else f"{other.title} is not installed: pip install {way.needs}"
    names = (distribution, f"+{installed.rpartition('+')[2]}")
    return f"not in {distribution} {installed}: {way.remedy}" if any(name in way.without for name in names) else ""


def _unusable(framework: Framework, installed: str) -> str:
    """Return why a framework does not work at all, or an empty string."""
    if not (_PACKAGE / framework.package / "__init__.py").exists():
        return "hvd_kernel has no API for it"
    try:
        old = Version(installed) < Version(framework.floor)
    except InvalidVersion:  # a custom build
        old = False
    if old:
        return f"too old: {framework.floor} or newer is needed (pip install --upgrade {framework.distributions[0]})"
    return f"{framework.plugin} was not built" if framework.plugin and not _has(framework.plugin) else ""


def _has(plugin: str) -> bool:
    core = importlib.util.find_spec("hvd_kernel._native")
    return core is not None and core.origin is not None and Path(core.origin).with_name(plugin).exists()
