"""Elastic training of ``hvd_kernel.keras``, under the name that scripts for TensorFlow's Keras import."""

from __future__ import annotations

from hvd_kernel.keras.elastic import *  # noqa: F403 - exactly its __all__
from hvd_kernel.keras.elastic import __all__  # noqa: F401 - of this module too
