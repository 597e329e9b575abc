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
class Feature:
    """A feature of a framework that some installations lack."""

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
    features: tuple[Feature, ...] = ()


@dataclass(frozen=True)
class Installed:
    """State of a framework in this environment."""

    title: str
    version: str  # "": it is not installed
    works: bool
    summary: str  # the features that work and those that do not, or why the framework does not work
    features: tuple[tuple[str, str], ...] = ()  # titles, with the reason if they do not work, or ""


_BACKENDS = (("TensorFlow", "tensorflow"), ("torch", "torch"), ("JAX", "jax"))  # of Keras 3; of Keras 2 the first

FRAMEWORKS = (
    Framework(
        "TensorFlow",
        "tensorflow",
        ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"),
        "2.13",
        "libhvd_tf.so",
        (
            Feature("eager, tf.function and sessions"),
            Feature(
                "tensors of a GPU through the host",
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
        features=(
            Feature("tensors of the CPU"),
            Feature("tensors of GPUs", without=("+cpu",), remedy="pip install --force-reinstall torch"),
        ),
    ),
    Framework(
        "MXNet",
        "mxnet",
        ("mxnet", "mxnet-cu102", "mxnet-cu112"),
        "1.9.1",
        "libhvd_mxnet.so",
        (
            Feature("in MXNet's engine"),
            Feature("arrays of a GPU through the host", without=("mxnet",), remedy="pip install mxnet-cu112"),
        ),
    ),
    Framework("NumPy", "numpy", ("numpy",), "1.24", features=(Feature("arrays, and what NumPy reads as one"),)),
    Framework(
        "JAX",
        "jax",
        ("jax",),
        "0.4.38",
        "libhvd_jax.so",
        (Feature("in jit and outside of it"),),
    ),
    Framework(
        "Keras",
        "keras",
        ("keras",),
        "2.13",
        features=tuple(Feature(f"on {title}", package) for title, package in _BACKENDS),
    ),
)
"""The three frameworks of Horovod, then others."""


def all_states() -> list[Installed]:
    """Return the state of each of ``FRAMEWORKS``."""
    return [state_of(framework) for framework in FRAMEWORKS]


def by_package(package: str) -> Installed:
    """Return the state of the framework with a package name.

    Raises
    ------
    StopIteration
        The package is not in ``FRAMEWORKS``.
    """
    return state_of(next(framework for framework in FRAMEWORKS if framework.package == package))


def state_of(framework: Framework) -> Installed:
    """Return the state of a framework, from its distribution's metadata and the files of this package.

    Example: ``state_of(FRAMEWORKS[1]).features`` is ``(("tensors of the CPU", ""), ("tensors of GPUs", "not in
    2.13.0+cpu: pip install --force-reinstall torch"))``.
    """
    distribution, installed = next(_versions(framework), ("", ""))
    if not installed:
        return Installed(framework.title, "", works=False, summary="not installed")
    reason = _unusable(framework, installed)
    features = tuple(
        (feature.title, reason or _lacks(feature, distribution, installed)) for feature in framework.features
    )
    working = [title for title, lacks in features if not lacks]
    if framework.features and not working:
        reason = reason or "; ".join(f"{title}: {lacks}" for title, lacks in features)
    lacking = [f"not {title} ({lacks})" for title, lacks in features if lacks]
    return Installed(framework.title, installed, not reason, reason or "; ".join(working + lacking), features)


def _versions(framework: Framework) -> Iterator[tuple[str, str]]:
    for distribution in framework.distributions:
        try:
            yield distribution, version(distribution)
        except PackageNotFoundError:
            continue


def _lacks(feature: Feature, distribution: str, installed: str) -> str:
    """Return why a feature does not work with an installed version, or an empty string."""
    if feature.needs:
        other = by_package(feature.needs)
        return "" if other.version else f"{other.title} is not installed: pip install {feature.needs}"
    names = (distribution, f"+{installed.rpartition('+')[2]}")
    is_missing = any(name in feature.without for name in names)
    return f"not in {distribution} {installed}: {feature.remedy}" if is_missing else ""


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
