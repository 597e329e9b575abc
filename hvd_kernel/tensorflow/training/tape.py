"""``DistributedGradientTape``: a tape whose gradients are the average of all ranks'."""
# ruff: noqa: N802, PLR0917 - Horovod's names and signatures

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.tensorflow.compression import Compression, Compressor
from hvd_kernel.tensorflow.mpi_ops import Average
from hvd_kernel.tensorflow.training.plan import ReductionPlan, check_predivide, checked_groups
from hvd_kernel.tensorflow.training.reduction import Reduction


class _Reducing:
    """What is put before the class of a tape."""

    _reduction: Reduction

    def register_local_source(self, source: Any) -> None:
        """Leave the gradient of this source to this rank: it is not reduced."""
        self._reduction.register_local(source)

    @tf.autograph.experimental.do_not_convert  # it would not find super()
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradients of ``target``, reduced over all ranks, in the structure of ``sources``.

        One that is None on all ranks is None here. ``use_generic_names``: reduce under names that do not tell which
        tape it is.

        Raises
        ------
        tf.errors.InvalidArgumentError
            One is None on some ranks only: on every rank, by the variable's name.
        """
        grads = super().gradient(  # type: ignore[misc] # the tape's
            target, sources, output_gradients, unconnected_gradients=unconnected_gradients
        )
        reduced = self._reduction(tf.nest.flatten(grads), tf.nest.flatten(sources), use_generic_names)
        return tf.nest.pack_sequence_as(sources, reduced)


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a tape like ``gradtape``, with what that has recorded, whose ``gradient`` reduces over all ranks.

    Parameters
    ----------
    gradtape
        A tf.GradientTape or of a class derived from it, before or after its ``with`` block.
    sparse_as_dense
        Reduce IndexedSlices as the dense tensors that they stand for.
    gradient_predivide_factor
        Divide by this before the sum and by the rest of the number of ranks after it, against overflow; with Average.
    groups
        A number of groups, or a list of lists of variables, whose gradients are reduced together or not at all.
    scale_local_gradients
        Divide the gradients of local sources by the number of ranks.

    Raises
    ------
    ValueError
        The parameters do not fit together.

    Example
    -------
    ::

        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, model.trainable_variables)
    """
    check_predivide(gradient_predivide_factor, op)
    plan = ReductionPlan(
        name="DistributedGradientTape",
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        op=op,
        predivide=gradient_predivide_factor,
        groups=checked_groups(num_groups, groups),
        process_set=process_set,
    )
    kind = type(gradtape)
    made: Any = object.__new__(type(kind.__name__, (_Reducing, kind), {}))
    reduction = Reduction(plan, scale_local=scale_local_gradients)
    # Not recording: within its block the tape that was given is the one that ends it.
    vars(made).update(vars(gradtape), _recording=False, _reduction=reduction)
    return made


def PartialDistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Return a ``DistributedGradientTape`` for which the variables of some layers are local.

    Parameters
    ----------
    local_layers
        A Keras layer or several, each built already. For the others see ``DistributedGradientTape``.

    Raises
    ------
    ValueError
        One of them is not a Keras layer.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in _layers(local_layers):
        for variable in layer.trainable_weights:
            tape.register_local_source(variable)
    return tape


def _layers(given: Any) -> list[Any]:
    layers = list(given) if isinstance(given, Iterable) else [] if given is None else [given]
    if not all(hasattr(layer, "trainable_weights") for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return layers
