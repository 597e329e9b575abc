"""Loading and copying models with a DistributedOptimizer: ``load_model``, and pickling for new ranks.

Keras saves and pickles an optimizer as one of its plain class: a rank with such a copy would train alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hvd_kernel.keras.flavour import keras
from hvd_kernel.keras.optimizer import Compression, DistributedOptimizer, wrapped
from hvd_kernel.keras.samples import instrument_fit
from hvd_kernel.keras.wrapping import WrappedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,  # noqa: ARG001 - Horovod's parameter; the file contains the optimizer's class
) -> Any:
    """Load a model that ``model.save`` has written; its optimizer is a ``DistributedOptimizer`` with the saved state.

    Parameters
    ----------
    custom_optimizers
        Classes of optimizers that are not part of Keras.
    custom_objects
        Custom objects by name, as in ``keras.models.load_model``.

    Raises
    ------
    ValueError
        Keras cannot load the file.

    Examples
    --------
    ::

        model = hvd.load_model("digits.keras")
    """
    objects = {kind.__name__: kind for kind in custom_optimizers or ()} | dict(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model


def copied(value: Any) -> Any:
    """Return how pickle rebuilds a distributed model or optimizer in another process; NotImplemented for other values.

    Raises
    ------
    TypeError
        The value is a built optimizer without its model, whose variables it refers to.
    """
    if isinstance(value, WrappedOptimizer | keras.optimizers.Optimizer):
        if getattr(value, "built", getattr(value, "_built", False)):
            raise TypeError("a built Keras optimizer can be copied with its compiled model only: copy the model")
        return _optimizer(value) if isinstance(value, WrappedOptimizer) else NotImplemented
    if not isinstance(value, keras.Model) or not isinstance(getattr(value, "optimizer", None), WrappedOptimizer):
        return NotImplemented
    make, parts, *more = value.__reduce__()
    if more:  # a model of Keras 2 that is not built, which is pickled as any object
        return NotImplemented
    local = value.optimizer.wrapping.reduction.local
    places = [place for place, variable in enumerate(value.trainable_variables) if id(variable) in local]
    return _rebuild_model, (make, parts, _arguments(value.optimizer), places)


def _optimizer(optimizer: Any) -> Any:
    return _rebuild_optimizer, (optimizer.wrapping.plain_class, optimizer.get_config(), _arguments(optimizer))


def _arguments(optimizer: Any) -> Any:
    settings, passes, average = optimizer.wrapping.arguments
    if isinstance(settings.groups, list):
        raise TypeError("a DistributedOptimizer with groups of variables cannot be copied: compile the model again")
    return settings, passes, average


def _rebuild_model(make: Any, parts: Any, arguments: Any, local: list[int]) -> Any:
    model = make(*parts)
    model.optimizer = _wrap_again(model.optimizer, arguments)
    for place in local:
        model.optimizer.register_local_var(model.trainable_variables[place])
    return model


def _rebuild_optimizer(kind: Any, config: Any, arguments: Any) -> Any:
    return _wrap_again(kind.from_config(config), arguments)


def _wrap_again(plain: Any, arguments: Any) -> Any:
    settings, passes, average = arguments
    instrument_fit()
    return wrapped(plain, settings, passes, average=average)
