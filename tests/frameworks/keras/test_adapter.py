"""The Keras adapter of cells: digests, memory, and copies for new ranks, whose optimizers still reduce; values of collectives."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def copies() -> dict[str, Any]:
    """Both ranks train, then rank 1 continues with a copy of its model, as a new rank would with rank 0's."""
    from frameworks.keras import small as s

    from hvd_kernel.core import metrics
    from hvd_kernel.frameworks import registry
    from hvd_kernel.keras.wrapping import WrappedOptimizer
    from hvd_kernel.worker.inspect import digest, replicate

    hvd, k = s.hvd(), s.keras()
    registry.import_adapters()
    how = s.how()
    x, y = s.data()
    px, py = (s.part(hvd.rank(), hvd.size(), each) for each in (x, y))
    model, alone = s.model(0), s.model(0)
    model.compile(hvd.DistributedOptimizer(k.optimizers.SGD(0.05, momentum=0.5), op=hvd.Average), loss="mse", **how)
    alone.compile(k.optimizers.SGD(0.05, momentum=0.5), loss="mse", **how)
    unused = hvd.DistributedOptimizer(k.optimizers.SGD(0.25), name="Mine", op=hvd.Sum, backward_passes_per_step=3)

    def fit(mine: Any) -> int:
        before = metrics.snapshot().step
        mine.fit(px, py, batch_size=4, shuffle=False, verbose=0)
        return metrics.snapshot().step - before

    steps = [fit(model)]
    packed, lost = replicate._pack({"model": model, "unused": unused}, ["model", "unused"])
    again = replicate._load(packed)
    copy = again["model"]
    same = [digest.together(digest.leaves(each)) for each in (model, copy)]
    steps.append(fit(copy if hvd.rank() else model))
    alone.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    settings, *others = again["unused"].wrapping.arguments
    _, refused = replicate._pack({"optimizer": model.optimizer}, ["optimizer"])
    return {
        "lost": lost,
        "wrapped": [isinstance(each, WrappedOptimizer) for each in (copy.optimizer, again["unused"])],
        "settings": [settings.name, settings.op == hvd.Sum, *others],
        "same": same[0] == same[1] is not None,
        "steps": steps,
        "weights": s.weights(copy if hvd.rank() else model),
        "alone": s.weights(alone),
        "refused": refused,
    }


def test_copy_of_a_model_continues_training_with_other_ranks(keras_ranks: RankPool) -> None:
    first, second = keras_ranks.run(copies)
    for found in (first, second):
        assert found["lost"] == {}
        assert found["wrapped"] == [True, True]
        assert found["settings"] == ["Mine", True, 3, False]
        assert found["same"]
        assert found["steps"] == [4, 4]
        assert found["weights"] == pytest.approx(found["alone"], rel=1e-5)
        assert list(found["refused"]) == ["optimizer"]
        assert "copy the model" in found["refused"]["optimizer"]
    assert first["weights"] == second["weights"]


def weighed() -> list[int]:
    """Return what a layer of 5050 weights, trained with Adam, adds to the memory of this rank: parameters, optimizer state."""
    import gc
    from collections import Counter

    import numpy as np
    from frameworks.keras import small as s

    from hvd_kernel.frameworks import registry

    hvd, k = s.hvd(), s.keras()
    registry.import_adapters()

    def kinds() -> Counter[str]:
        gc.collect()
        found: Counter[str] = Counter()
        for adapter in registry.in_use():
            found.update(adapter.alive_bytes())
        return found

    before = kinds()
    model = k.Sequential([k.layers.Dense(50)])
    model.compile(hvd.DistributedOptimizer(k.optimizers.Adam(0.1)), loss="mse", **s.how())
    model.fit(np.zeros((8, 100), "float32"), np.zeros((8, 50), "float32"), verbose=0)
    after = kinds()
    return [after[kind] - before[kind] for kind in ("parameters", "optimizer state")]


def test_memory_lists_parameters_and_optimizer_state(keras_ranks: RankPool) -> None:
    """Two moments of each weight; a count of steps and a learning rate, in some flavours of eight bytes."""
    for parameters, state in keras_ranks.run(weighed):
        assert parameters == 5050 * 4
        assert 0 <= state - 2 * parameters <= 16


def check_values() -> list[Any]:
    import numpy as np
    from frameworks.keras import small

    from hvd_kernel.keras.flavour import is_tensor

    hvd = small.hvd()
    mine = np.array([1.0, 2.0], np.float32) + hvd.rank()
    tensors = [
        hvd.allreduce(hvd.allreduce(mine)),
        hvd.allreduce(float(hvd.rank())),
        hvd.allreduce(2 * hvd.rank(), average=False),
    ]
    assert all(is_tensor(each) for each in tensors)
    wide = hvd.allgather(np.array([2**40 + hvd.rank()])), hvd.allreduce(np.array([[1.0, 3.0]]) * (1 + 2 * hvd.rank()))
    return [[np.asarray(each).tolist(), np.asarray(each).dtype.name] for each in [*tensors, *wide]]


def test_numbers_tensors_and_wide_types(keras_ranks: RankPool) -> None:
    want = [
        [[1.5, 2.5], "float32"],
        [0.5, "float32"],
        [2, "int32"],
        [[2**40, 2**40 + 1], "int64"],
        [[[2.0, 6.0]], "float64"],
    ]
    assert keras_ranks.run(check_values) == [want, want]
