"""Gluon trainer that averages gradients over all ranks: ``gluon.Trainer`` without a key-value store."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

from hvd_kernel.core import metrics, step_counts
from hvd_kernel.core.process_sets import ProcessSet, check, global_process_set
from hvd_kernel.frameworks.arguments import raised_as
from hvd_kernel.mxnet.compression import Compression, Compressor
from hvd_kernel.mxnet.library import MxnetArgumentError
from hvd_kernel.mxnet.optimizer import DistributedOptimizer, reduce_in_groups

step_counts.attach_loaded("mxnet.gluon.trainer")


class DistributedTrainer(mx.gluon.Trainer):
    """A ``gluon.Trainer`` that averages gradients over all ranks.

    Parameters
    ----------
    params
        ``net.collect_params()``, a dict or a list of parameters; the same on all ranks.
    optimizer
        A name, or an ``mx.optimizer.Optimizer``.
    compression
        Compression of the gradients that are sent: ``Compression.fp16``.
    gradient_predivide_factor
        Divisor of the gradients before the sum; the result is still the average.
    prefix
        Prefix of the operations' names; needed if steps of two trainers overlap.
    num_groups
        Number of groups in which gradients are reduced, each as a whole or not at all; 0: one by one.

    Raises
    ------
    ValueError
        A parameter has sparse gradients, or is on several devices of this process.

    Example
    -------
    ::

        trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1 * hvd.size()})
        hvd.broadcast_parameters(net.collect_params(), root_rank=0)
        with autograd.record():
            loss = loss_fn(net(data), label)
        loss.backward()
        trainer.step(batch_size)   # the size of this rank's batch
    """

    reduces_gradients = True  # for core/step_counts.py, which follows plain trainers

    def __init__(  # noqa: PLR0917 - Horovod's signature
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: type[Compressor] = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        with raised_as(MxnetArgumentError):
            check(process_set)
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer.wrapped
            warnings.warn(
                "DistributedTrainer does not take DistributedOptimizer as its optimizer. We have unwrapped it for you.",
                stacklevel=2,
            )
        if isinstance(params, list | tuple):
            params = sorted(params, key=lambda param: param.name)  # the same order on all ranks
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)
        self._check_params()
        self._compression = compression
        self._predivide = gradient_predivide_factor
        self._prefix = prefix or ""
        self._num_groups = num_groups
        self._process_set = process_set
        self._samples = 0

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Average the gradients, divide them by this rank's ``batch_size``, and update the parameters."""
        self._samples = int(batch_size)
        super().step(batch_size, ignore_stale_grad)

    def _allreduce_grads(self) -> None:
        """Average gradients in place: gluon calls this in ``step`` and ``allreduce_grads``."""
        metrics.step(self._samples)
        self._samples = 0
        trained = [number for number, param in enumerate(self._params) if param.grad_req != "null"]
        grads = [self._params[number].list_grad()[0] for number in trained]
        sent = [self._compression.compress(grad) for grad in grads]
        reduce_in_groups(
            [small for small, _ in sent],
            trained,
            self._prefix,
            self._num_groups,
            self._predivide,
            self._process_set,
        )
        for grad, (small, ctx) in zip(grads, sent, strict=True):
            if small is not grad:
                grad[:] = self._compression.decompress(small, ctx)

    def _check_params(self) -> None:
        for param in self._params:
            if param._grad_stype != "default":  # noqa: SLF001 - MXNet has no public name for it
                raise ValueError(
                    f"DistributedTrainer: the gradient of {param.name} has storage type {param._grad_stype}, "  # noqa: SLF001
                    "which is not supported: make its layer with sparse_grad=False."
                )
        if self._contexts is not None and len(self._contexts) > 1:
            raise ValueError(
                f"DistributedTrainer: the parameters are on {len(self._contexts)} devices of this process; a rank "
                "trains on one: initialize(ctx=mx.gpu(hvd.local_rank()))."
            )
