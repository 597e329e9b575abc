"""Results of collectives for JAX, computed by NumPy from all ranks' arrays.

Values are small whole numbers, so that every sum, product and half is exact in every type: results are compared bit by
bit, and no tolerance hides anything.

Terms.
  both   what each rank has, (ranks, rows, columns)
  back   of each rank the gradient of its operand, by the gradients of the results: Horovod's rules (hvd_kernel/jax/primitive.py)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Each = Callable[[Any], Any]


class Collective(NamedTuple):
    """Of every rank's arrays every rank's results; ``back`` is None where there is no gradient."""

    call: Callable[[Any, Any], Any]  # of the module hvd_kernel.jax and an array
    values: Each
    back: Each | None


def _alike(one: Any, ranks: int) -> Any:
    return np.stack([one] * ranks)


def _rows(both: Any) -> Any:
    """Every rank's share of each array's rows: (ranks that have it, ranks that get it, rows, columns)."""
    ranks, rows, columns = both.shape
    return both.reshape(ranks, ranks, rows // ranks, columns)


def _mean(both: Any) -> Any:
    return _alike(both.mean(0), len(both))


def _sum(both: Any) -> Any:
    return _alike(both.sum(0), len(both))


def _gathered(both: Any) -> Any:
    return _alike(both.reshape(-1, both.shape[2]), len(both))


def _exchanged(both: Any) -> Any:
    return _rows(both).swapaxes(0, 1).reshape(both.shape)


def _only(root: int) -> Each:
    return lambda both: np.stack(
        [both.mean(0) if rank == root else np.zeros_like(both[0]) for rank in range(len(both))]
    )


def collectives(root: int, before: float, after: float) -> dict[str, Collective]:
    """Every collective that has arrays, by name; ``root`` and the scales are the example's."""
    return {
        "average": Collective(lambda hvd, x: hvd.allreduce(x), _mean, _mean),
        "sum": Collective(lambda hvd, x: hvd.allreduce(x, hvd.Sum), _sum, _sum),
        "scaled": Collective(
            lambda hvd, x: hvd.allreduce(x, hvd.Sum, prescale_factor=before, postscale_factor=after),
            lambda both: _sum(both) * before * after,
            lambda both: _sum(both) * before * after,
        ),
        "min": Collective(lambda hvd, x: hvd.allreduce(x, hvd.Min), lambda both: _alike(both.min(0), len(both)), None),
        "max": Collective(lambda hvd, x: hvd.allreduce(x, hvd.Max), lambda both: _alike(both.max(0), len(both)), None),
        "product": Collective(
            lambda hvd, x: hvd.allreduce(x, hvd.Product), lambda both: _alike(both.prod(0), len(both)), None
        ),
        "group": Collective(lambda hvd, x: hvd.grouped_allreduce([x, x[0]])[0], _mean, _mean),
        "allgather": Collective(
            lambda hvd, x: hvd.allgather(x),
            _gathered,
            lambda both: _rows(both.reshape(len(both), -1, both.shape[2])).mean(0),
        ),
        "gathered group": Collective(
            lambda hvd, x: hvd.grouped_allgather([x[:1], x])[1],
            _gathered,
            lambda both: _rows(both.reshape(len(both), -1, both.shape[2])).mean(0),
        ),
        "broadcast": Collective(
            lambda hvd, x: hvd.broadcast(x, root), lambda both: _alike(both[root], len(both)), _only(root)
        ),
        "broadcast group": Collective(
            lambda hvd, x: hvd.grouped_broadcast([x[0], x], root)[1],
            lambda both: _alike(both[root], len(both)),
            _only(root),
        ),
        "alltoall": Collective(lambda hvd, x: hvd.alltoall(x), _exchanged, _exchanged),
        "reducescatter": Collective(
            lambda hvd, x: hvd.reducescatter(x),
            lambda both: _rows(both).mean(0),
            _gathered,
        ),
        "scattered sum": Collective(
            lambda hvd, x: hvd.reducescatter(x, hvd.Sum),
            lambda both: _rows(both).sum(0),
            lambda both: _gathered(both) * len(both),
        ),
        "scattered group": Collective(
            lambda hvd, x: hvd.grouped_reducescatter([x, x], hvd.Sum, prescale_factor=before)[0],
            lambda both: _rows(both).sum(0) * before,
            lambda both: _gathered(both) * len(both) * before,
        ),
    }


class Example(NamedTuple):
    """A collective as a function of one rank's array, and its result on this rank."""

    function: Each
    rank: int
    collective: Collective
    both: Any  # every rank's array, in float64
    weights: Any  # of the loss, sum(weights * result), of every rank
    mine: Any  # this rank's, of JAX
    own: Any  # this rank's weights, of JAX

    def value(self, factor: float = 1.0) -> Any:
        """This rank's result of the arrays times a number."""
        return self.collective.values(factor * self.both)[self.rank]

    def gradient(self) -> Any:
        """Return this rank's gradient of the loss; by JAX's method, the weights are the results' gradients."""
        assert self.collective.back is not None
        return self.collective.back(self.weights)[self.rank]

    def loss(self, x: Any) -> Any:
        """The loss, in JAX."""
        return (self.function(x) * self.own).sum()


Pair = tuple[Any, Any]  # results of JAX and of NumPy
Way = Callable[[Example], list[Pair]]


def ways() -> dict[str, Way]:
    """Return JAX's transformations of a function, by name."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    factors = (1.0, -1.0, 2.0)

    def stacked(e: Example, axis: int = 0) -> Any:
        return jnp.stack([e.mine * factor for factor in factors], axis)

    def values(e: Example, axis: int = 0) -> Any:
        return np.stack([e.value(factor) for factor in factors], axis)

    def looped(e: Example) -> Any:
        def body(state: Any) -> Any:
            count, total = state
            return count + 1, total + e.function(e.mine * count.astype(e.mine.dtype))

        start = jnp.int32(1), jnp.zeros_like(e.function(e.mine))
        return jax.jit(lambda: lax.while_loop(lambda state: state[0] < 3, body, start)[1])()

    def custom(e: Example) -> Any:
        def plain(x: Any) -> Any:
            return e.function(x)

        function: Any = jax.custom_vjp(plain)

        def forward(x: Any) -> Any:
            return e.function(x), x

        def backward(x: Any, ct: Any) -> Any:
            return (2 * jax.vjp(e.function, x)[1](ct)[0],)

        function.defvjp(forward, backward)
        return jax.jit(jax.grad(lambda x: (function(x) * e.own).sum()))(e.mine)

    def chosen(e: Example, yes: bool) -> Any:
        return jax.jit(lambda x, y: lax.cond(y, e.function, lambda x: e.function(-x), x))(e.mine, yes)

    def second(e: Example) -> Any:
        """The slope, in direction 2, of the gradient of the sum of the squares' results: twice that of the sum, times 2."""
        slope = jax.grad(lambda x: e.function(x * x).sum())
        return jax.jit(lambda x: jax.jvp(slope, (x,), (2 * jnp.ones_like(x),))[1])(e.mine)

    def ones(e: Example) -> Any:
        assert e.collective.back is not None
        return e.collective.back(np.ones_like(e.weights))[e.rank]

    gradients = {
        "grad": lambda e: [(jax.jit(jax.grad(e.loss))(e.mine), e.gradient())],
        "grad outside": lambda e: [(jax.grad(e.loss)(e.mine), e.gradient())],
        "jvp": lambda e: list(
            zip(jax.jit(lambda x: jax.jvp(e.function, (x,), (3 * x,)))(e.mine), (e.value(), e.value(3.0)), strict=True)
        ),
        "vmap of grad": lambda e: [
            (jax.jit(jax.vmap(jax.grad(e.loss)))(stacked(e)), np.stack([e.gradient()] * len(factors)))
        ],
        "grad of vmap": lambda e: [
            (
                jax.jit(jax.grad(lambda x: (jax.vmap(e.function)(x) * e.own).sum()))(stacked(e)),
                np.stack([e.gradient()] * len(factors)),
            )
        ],
        "checkpoint": lambda e: [(jax.jit(jax.grad(jax.checkpoint(e.loss)))(e.mine), e.gradient())],
        "grad of scan": lambda e: [
            (
                jax.jit(jax.grad(lambda x: lax.scan(lambda c, f: (c + e.loss(f * x), None), 0.0 * e.loss(x), jnp.array(
                    factors, e.mine.dtype))[0]))(e.mine),
                2 * e.gradient(),
            )
        ],
        "custom_vjp": lambda e: [(custom(e), 2 * e.gradient())],
        "second derivative": lambda e: [(second(e), 4 * ones(e))],
    }  # fmt: skip
    return {
        "outside": lambda e: [(e.function(e.mine), e.value())],
        "jit": lambda e: [(jax.jit(e.function)(e.mine), e.value())],
        "vmap": lambda e: [(jax.jit(jax.vmap(e.function))(stacked(e)), values(e))],
        "vmap, last axis": lambda e: [(jax.jit(jax.vmap(e.function, 2, 1))(stacked(e, 2)), values(e, 1))],
        "scan": lambda e: [
            (jax.jit(lambda x: lax.scan(lambda c, y: (c, e.function(y)), 0, x)[1])(stacked(e)), values(e))
        ],
        "while": lambda e: [(looped(e), e.value() + e.value(2.0))],
        "cond": lambda e: [(chosen(e, True), e.value()), (chosen(e, False), e.value(-1.0))],
        "donated": lambda e: [(jax.jit(e.function, donate_argnums=0)(e.mine + 0), e.value())],
        **{name: _of_gradients(way) for name, way in gradients.items()},
    }


def _of_gradients(way: Way) -> Way:
    """Return a check of gradients; of a collective without one it expects the error."""

    def told(e: Example) -> list[Pair]:
        if e.collective.back is not None:
            return way(e)
        try:
            way(e)
        except NotImplementedError as error:
            return [(float("has no gradient" in str(error)), 1.0)]
        return [(0.0, 1.0)]

    return told
