"""The TensorFlow adapter of cells and the doctor: facts, digests, copies for new ranks, and ``hvd`` on a rank."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def known() -> dict[str, Any]:
    import sys

    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd
    from hvd_kernel.core import ops
    from hvd_kernel.frameworks import installed, registry
    from hvd_kernel.worker import names
    from hvd_kernel.worker.inspect import digest, replicate, variables

    hvd.init()
    registry.import_adapters()
    module = tf.Module()
    module.weight, module.bias = tf.Variable([1.0, 2.0]), tf.Variable(3.0, trainable=False)
    values = {
        "module": module,
        "variable": tf.Variable([1.0, 2.0], name="mine"),
        "tensor": tf.constant([[1, 2]], tf.int64),
        "half": tf.Variable([0.5], dtype=tf.bfloat16),
        "generator": tf.random.Generator.from_seed(3),
        "optimizer": hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.5)),
        "differs": tf.Variable([float(hvd.rank())]),
    }
    found = {name: digest.together(digest.leaves(value)) for name, value in values.items()}
    everyone = ops.allgather_object(found)
    packed, lost = replicate._pack(values | {"data": tf.data.Dataset.range(3)}, [*values, "data"])
    again = replicate._load(packed)
    copied = {name: digest.together(digest.leaves(value)) for name, value in again.items()}
    again["module"].weight.assign([5.0, 6.0])
    return {
        "equal": sorted(name for name in found if found[name] and everyone[0][name] == everyone[1][name]),
        "copied": sorted(name for name in copied if copied[name] == found[name] != ""),
        "its own": module.weight.numpy().tolist(),
        "optimizer": type(again["optimizer"]) is type(values["optimizer"]),
        "lost": list(lost),
        "facts": [variables.facts(values[name])["dtype"] for name in ("tensor", "half", "variable")],
        "frontend": names._frontend().api,
        "device": str(registry.adapter("tensorflow").device(0, [])),
        "installed": [
            installed.by_package("tensorflow").version == tf.__version__,
            installed.by_package("tensorflow").works,
        ],
        "torch": "torch" in sys.modules,
    }


def test_cells_know_tensorflow(tf_ranks: RankPool) -> None:
    numbers = ["generator", "half", "module", "tensor", "variable"]
    want = {
        "equal": numbers,
        "copied": ["differs", *numbers],
        "its own": [1.0, 2.0],
        "optimizer": True,
        "lost": ["data"],
        "facts": ["int64", "bfloat16", "float32"],
        "frontend": "hvd_kernel.tensorflow",
        "device": "/CPU:0",
        "installed": [True, True],
        "torch": False,
    }
    assert tf_ranks.run(known) == [want] * 2


def weighed() -> int:
    """How many bytes a variable and an eager tensor add to those of this rank."""
    import gc

    import tensorflow as tf

    from hvd_kernel.frameworks import registry

    registry.import_adapters()
    gc.collect()
    before = registry.adapter("tensorflow").alive_bytes()["tensors"]
    kept = tf.Variable(tf.zeros(1000)), tf.ones(500)
    gc.collect()
    return registry.adapter("tensorflow").alive_bytes()["tensors"] - before if kept else 0


def test_memory_has_variables_and_eager_tensors(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(weighed) == [6000] * 2
