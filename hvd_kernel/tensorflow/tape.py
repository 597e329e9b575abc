"""``DistributedGradientTape``: a tape whose gradients are averaged over all ranks."""
# ruff: noqa: N802, PLR0917 - Horovod's names and signatures

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvd_kernel.core.process_sets import ProcessSet, global_process_set
from hvd_kernel.tensorflow.compression import Compression, Compressor
from hvd_kernel.tensorflow.gradient_reduction import Reduction, ReductionPlan, check_predivide, checked_groups
from hvd_kernel.tensorflow.mpi_ops import Average


class _Reducing:
    """Mixin before the class of a tape."""

    _reduction: Reduction

    def register_local_source(self, source: Any) -> None:
        """Exclude the gradient of this source from the reduction."""
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

        A gradient that is None on all ranks stays None. ``use_generic_names``: names of operations do not contain the
        name of the tape.

        Raises
        ------
        tf.errors.InvalidArgumentError
            On every rank: a gradient is None on some ranks only; the message names the variable.
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
    """Return a tape with the recording of ``gradtape``, whose ``gradient`` reduces over all ranks.

    Parameters
    ----------
    gradtape
        A tf.GradientTape or an instance of a derived class, before or after its ``with`` block.
    sparse_as_dense
        Reduce IndexedSlices as dense tensors.
    gradient_predivide_factor
        Part of the division by the number of ranks that is applied before the sum, against overflow; with Average only.
    groups
        A number of groups, or a list of lists of variables; each group is reduced as a whole or not at all.
    scale_local_gradients
        Divide the gradients of local sources by the number of ranks.

    Raises
    ------
    ValueError
        The parameters contradict each other.

    Examples
    --------
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
    tape: Any = object.__new__(type(kind.__name__, (_Reducing, kind), {}))
    reduction = Reduction(plan, scale_local=scale_local_gradients)
    # Not recording: within its ``with`` block gradtape ends the recording.
    vars(tape).update(vars(gradtape), _recording=False, _reduction=reduction)
    return tape


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
        A built Keras layer, or several. For other parameters see ``DistributedGradientTape``.

    Raises
    ------
    ValueError
        ``local_layers`` contains a value that is not a Keras layer.
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


def _layers(local_layers: Any) -> list[Any]:
    if isinstance(local_layers, Iterable):
        layers = list(local_layers)
    else:
        layers = [] if local_layers is None else [local_layers]
    if not all(hasattr(layer, "trainable_weights") for layer in layers):
        raise ValueError("All local layers must be of tf.keras.layers.Layer type.")
    return layers
