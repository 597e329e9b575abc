"""``load_model``: a saved model, whose optimizer comes back wrapped, with its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hvd_kernel.keras.flavour import keras
from hvd_kernel.keras.optimizer import Compression, DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,  # noqa: ARG001 - Horovod's: what was saved says which optimizer it is
) -> Any:
    """Load a model that ``model.save`` has written; its optimizer is a ``DistributedOptimizer`` with the saved state.

    Parameters
    ----------
    custom_optimizers
        Classes of optimizers that Keras does not know.
    custom_objects
        Names and what they stand for, as in ``keras.models.load_model``.

    Raises
    ------
    ValueError
        Keras cannot load it.

    Example
    -------
    ::

        model = hvd.load_model("digits.keras")
    """
    known = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
