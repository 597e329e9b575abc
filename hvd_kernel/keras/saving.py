"""Models that come back with their optimizer wrapped, and its state: ``load_model``, and copies for fresh ranks.

Keras saves and pickles an optimizer as one of its plain class: a rank with such a copy would train alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hvd_kernel.keras.flavour import keras
from hvd_kernel.keras.optimizer import Compression, DistributedOptimizer, wrapped
from hvd_kernel.keras.samples import attend_fit
from hvd_kernel.keras.wrapping import WrappedOptimizer


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


def copied(value: Any) -> Any:
    """Return how pickle is to make a model, or an optimizer of ours, again elsewhere; NotImplemented: it is neither.

    Raises
    ------
    TypeError
        An optimizer by itself that has been built belongs to its model's variables, which are others elsewhere.
    """
    if isinstance(value, WrappedOptimizer | keras.optimizers.Optimizer):
        if getattr(value, "built", getattr(value, "_built", False)):
            raise TypeError("a Keras optimizer travels within the compiled model that it belongs to: keep the model")
        return _optimizer(value) if isinstance(value, WrappedOptimizer) else NotImplemented
    if not isinstance(value, keras.Model) or not isinstance(getattr(value, "optimizer", None), WrappedOptimizer):
        return NotImplemented
    make, parts, *more = value.__reduce__()
    if more:  # of Keras 2, and not built: it travels as any object does
        return NotImplemented
    local = value.optimizer.wrapping.reduction.local
    places = [place for place, variable in enumerate(value.trainable_variables) if id(variable) in local]
    return _model_again, (make, parts, _how(value.optimizer), places)


def _optimizer(optimizer: Any) -> Any:
    return _optimizer_again, (optimizer.wrapping.given, optimizer.get_config(), _how(optimizer))


def _how(optimizer: Any) -> Any:
    settings, passes, average = optimizer.wrapping.again
    if isinstance(settings.groups, list):
        raise TypeError("a DistributedOptimizer with groups of variables has to be made anew: compile the model again")
    return settings, passes, average


def _model_again(make: Any, parts: Any, how: Any, local: list[int]) -> Any:
    model = make(*parts)
    model.optimizer = _wrapped_again(model.optimizer, how)
    for place in local:
        model.optimizer.register_local_var(model.trainable_variables[place])
    return model


def _optimizer_again(kind: Any, config: Any, how: Any) -> Any:
    return _wrapped_again(kind.from_config(config), how)


def _wrapped_again(plain: Any, how: Any) -> Any:
    settings, passes, average = how
    attend_fit()
    return wrapped(plain, settings, passes, average=average)
