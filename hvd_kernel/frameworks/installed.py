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
class Way:
    """Something that works with a framework, unless what is installed lacks it."""

    title: str
    needs: str = ""  # the package of another framework
    without: tuple[str, ...] = ()  # distributions, or ends of a version, that cannot do it
    remedy: str = ""


@dataclass(frozen=True)
class Framework:
    """A framework that Horovod's users have, and what it needs here."""

    title: str
    package: str
    distributions: tuple[str, ...]
    floor: str = "0"
    plugin: str = ""  # a compiled part of ours that it needs, beside the core
    ways: tuple[Way, ...] = ()  # what works


@dataclass(frozen=True)
class Installed:
    """A framework, as it is here."""

    title: str
    version: str  # "": it is not installed
    works: bool
    summary: str  # what works and what of it does not, or why nothing does
    ways: tuple[tuple[str, str], ...] = ()  # each that there may be, and why it does not work; "": it does


_BACKENDS = (("TensorFlow", "tensorflow"), ("torch", "torch"), ("JAX", "jax"))  # of Keras 3; Keras 2 has the first

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

    Example: ``look(FRAMEWORKS[1]).ways`` is ``(("tensors of the CPU", ""), ("tensors of GPUs", "not in 2.13.0+cpu: pip
    install --force-reinstall torch"))``.
    """
    name, here = next(_versions(framework), ("", ""))
    if not here:
        return Installed(framework.title, "", works=False, summary="not installed")
    why = _why_not(framework, here)
    ways = tuple((way.title, why or _lacks(way, name, here)) for way in framework.ways)
    working = [title for title, lacks in ways if not lacks]
    if framework.ways and not working:
        why = why or "; ".join(f"{title}: {lacks}" for title, lacks in ways)
    lacking = [f"not {title} ({lacks})" for title, lacks in ways if lacks]
    return Installed(framework.title, here, not why, why or "; ".join(working + lacking), ways)


def _versions(framework: Framework) -> Iterator[tuple[str, str]]:
    for distribution in framework.distributions:
        try:
            yield distribution, version(distribution)
        except PackageNotFoundError:
            continue


def _lacks(way: Way, distribution: str, here: str) -> str:
    """Return why what is installed cannot do this; empty: it can."""
    if way.needs:
        other = one(way.needs)
        return "" if other.version else f"{other.title} is not installed: pip install {way.needs}"
    culprits = [each for each in way.without if distribution == each or (each.startswith("+") and here.endswith(each))]
    return f"not in {distribution} {here}: {way.remedy}" if culprits else ""


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
