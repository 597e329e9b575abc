"""An optimizer of TensorFlow 1 around another one: what both ways of distributing one have in common."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Legacy: Any = tf.compat.v1.train.Optimizer


class Wrapper(Legacy):
    """Hands on what it does not do itself."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return the wrapped optimizer's."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return the wrapped optimizer's."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """Return the wrapped optimizer's."""
        return self._optimizer.variables(*args, **kwargs)
