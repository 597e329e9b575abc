"""Keras callbacks of ``hvd_kernel.keras``, under the name that scripts for TensorFlow's Keras import."""

from __future__ import annotations

from hvd_kernel.keras.callbacks import *  # noqa: F403 - exactly its __all__
from hvd_kernel.keras.callbacks import __all__  # noqa: F401 - of this module too
