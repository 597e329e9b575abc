"""The MXNet adapter of cells and the doctor: facts, digests, copies, and ``hvd`` on a rank."""

from __future__ import annotations

from typing import Any

import pytest
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]


def digests() -> dict[str, Any]:
    import mxnet as mx

    import hvd_kernel.mxnet as hvd
    from hvd_kernel.core import ops
    from hvd_kernel.frameworks import installed, registry
    from hvd_kernel.worker import names
    from hvd_kernel.worker.inspect import digest, replicate, variables

    hvd.init()
    registry.import_adapters()
    net = mx.gluon.nn.Dense(1, in_units=2, use_bias=False)
    net.initialize(mx.init.Constant(hvd.rank() + 1.0))
    hvd.broadcast_parameters(net.collect_params(), root_rank=0)
    trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5, "momentum": 0.5})
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 2))).sum()
    loss.backward()
    trainer.step(1)
    values = {"net": net, "trainer": trainer, "params": net.collect_params(), "mine": mx.nd.ones((2,)) * hvd.rank()}
    found = {name: digest.together(digest.leaves(value)) for name, value in values.items()}
    every = ops.allgather_object(found)
    packed, lost = replicate._pack(values, ["net", "trainer"])
    again = replicate._load(packed)
    with mx.autograd.record():
        loss = again["net"](mx.nd.ones((1, 2))).sum()
    loss.backward()
    again["trainer"].step(1)  # momentum came along, and the trainer is that of the net
    return {
        "equal": sorted(name for name in found if found[name] and every[0][name] == every[1][name]),
        "parts": [leaf.path for leaf in digest.leaves(net)],
        "facts": variables.facts(values["mine"])["dtype"],
        "lost": lost,
        "again": again["net"].weight.data().asnumpy().tolist(),
        "frontend": names._frontend().api,
        "device": str(registry.adapter("mxnet").device(0, [])),
        "installed": [installed.by_package("mxnet").version, installed.by_package("mxnet").works],
    }


def test_cells_know_mxnet(mx_ranks: RankPool) -> None:
    want = {
        "equal": ["net", "params", "trainer"],
        "parts": [[], ["weight"], ["weight", "0"]],
        "facts": "float32",
        "lost": {},
        "again": [[1 - 0.5 - 0.75, 1 - 0.5 - 0.75]],
        "frontend": "hvd_kernel.mxnet",
        "device": "cpu(0)",
        "installed": ["1.9.1", True],
    }
    assert mx_ranks.run(digests) == [want] * 2


def weighed() -> list[Any]:
    """Return what a layer of 5050 weights, trained with Adam, and a slice of an array add to the memory of this rank, by kinds."""
    import gc

    import mxnet as mx

    import hvd_kernel.mxnet as hvd
    from hvd_kernel.frameworks import registry

    hvd.init()
    registry.import_adapters()
    gc.collect()
    adapter = registry.adapter("mxnet")
    before = adapter.alive_bytes()
    net = mx.gluon.nn.Dense(50, in_units=100)
    net.initialize()
    trainer = hvd.DistributedTrainer(net.collect_params(), "adam")
    with mx.autograd.record():
        loss = net(mx.nd.ones((8, 100))).sum()
    loss.backward()
    trainer.step(8)
    whole = mx.nd.ones((1000,))
    half = whole[:500]
    mx.nd.waitall()
    del loss
    gc.collect()
    after = adapter.alive_bytes()
    return [{kind: after[kind] - before[kind] for kind in after if len(half)}, adapter.gradient_bytes(net)]


def test_memory_has_parameters_gradients_and_optimizer_state(mx_ranks: RankPool) -> None:
    """Two moments of each weight; a slice has no memory of its own."""
    layer = 5050 * 4
    kinds = {"tensors": 4 * layer + 4000, "gradients": layer, "optimizer state": 2 * layer, "parameters": layer}
    assert mx_ranks.run(weighed) == [[kinds, layer]] * 2
