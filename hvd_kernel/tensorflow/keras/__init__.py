"""Horovod's API for TensorFlow's Keras: ``import hvd_kernel.tensorflow.keras as hvd``; as ``hvd_kernel.keras``."""

from __future__ import annotations

from hvd_kernel.keras import *  # noqa: F403 - exactly its __all__
from hvd_kernel.keras import __all__
from hvd_kernel.keras.flavour import BACKEND

if BACKEND != "tensorflow":
    raise ImportError(
        f"hvd_kernel.tensorflow.keras is Keras's on TensorFlow, and Keras uses {BACKEND!r} here: "
        "import hvd_kernel.keras, or set KERAS_BACKEND=tensorflow before Keras is imported."
    )
