"""Stand-ins for modules that the documentation environment lacks, so that ours can be imported for their docstrings.

Frameworks get a version, because our modules check it; our modules that load a plugin of a framework are replaced too.
"""

from __future__ import annotations

import sys
import types
from importlib import import_module
from importlib.machinery import ModuleSpec
from unittest.mock import patch

import numpy as np
from sphinx.ext.autodoc.mock import _MockModule

VERSIONS = {
    "torch": "2.13.0",
    "tensorflow": "2.21.0",
    "jax": "0.9.0",
    "mxnet": "1.9.1",
    "keras": "3.13.0",
    "pyspark": "4.3.0",
    "ray": "2.60.0",
    "lightning": "2.6.0",
}
_LIBRARIES = (
    *("jaxlib", "optax", "tf_keras", "pytorch_lightning", "ipyparallel", "ipywidgets", "anywidget", "mpi4py"),
    *("fsspec", "pandas", "pyarrow", "jupyter_client"),
)
_OURS = (
    *("_native", "jax.library", "jax.primitive", "tensorflow.library", "mxnet.library"),
    *("integrations.lightning", "integrations.pytorch_lightning"),
)
MOCKED = [*VERSIONS, *_LIBRARIES, *(f"hvd_kernel.{module}" for module in _OURS)]


def prepare() -> None:
    """Put the frameworks in place. MXNet's module is imported here, because it refuses the NumPy of this environment."""
    for name, version in VERSIONS.items():
        if name not in sys.modules:
            module = sys.modules[name] = _MockModule(name)
            module.__spec__ = ModuleSpec(name, None, origin="a stand-in")
            module.__version__ = version
    sys.modules["keras"].backend = types.SimpleNamespace(backend=lambda: "torch")
    with patch.object(np, "__version__", "1.26.4"):
        import_module("hvd_kernel.mxnet")
