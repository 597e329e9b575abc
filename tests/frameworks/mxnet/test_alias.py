"""``import horovod.mxnet as hvd``: its modules, a program written for Horovod, and environments without MXNet."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hvdtest.environments import environment, quiet
from hvdtest.hvdrun import HVDRUN, good, lines_of, ran
from hvdtest.launch import RankPool

pytestmark = [pytest.mark.nightly, pytest.mark.mp]

MODULES = tomllib.loads((Path(__file__).parents[1] / "horovod_names" / "modules.toml").read_text())["needs_mxnet"]
NAMES = """
    Compression DistributedOptimizer DistributedTrainer allgather allgather_object allreduce allreduce_ alltoall
    broadcast broadcast_ broadcast_object broadcast_parameters ccl_built cross_rank cross_size cuda_built ddl_built
    gloo_built gloo_enabled grouped_allgather grouped_allreduce grouped_allreduce_ grouped_reducescatter init
    is_initialized local_rank local_size mpi_built mpi_enabled mpi_threads_supported nccl_built rank reducescatter
    rocm_built shutdown size split_list start_timeline stop_timeline ProcessSet add_process_set global_process_set
    remove_process_set Average Sum Adasum Min Max Product
"""


def aliases(modules: list[str], names: list[str]) -> list[Any]:
    import importlib

    import horovod.mxnet as hvd

    import hvd_kernel.mxnet

    there = [importlib.import_module(name).__name__ for name in modules]
    basics = importlib.import_module("horovod.mxnet.mpi_ops")._basics
    return [hvd is hvd_kernel.mxnet, there, [name for name in names if not hasattr(hvd, name)], basics is not None]


def test_every_module_and_name_exists(mx_ranks: RankPool) -> None:
    shared = {"horovod.mxnet.compression": "hvd_kernel.frameworks.compression"}
    ours = [shared.get(name, name.replace("horovod.", "hvd_kernel.")) for name in MODULES]
    assert mx_ranks.run(aliases, MODULES, NAMES.split()) == [[True, ours, [], True]] * 2


SCRIPT = """
import mxnet as mx
from mxnet import autograd, gluon
import horovod.mxnet as hvd

hvd.init()
mx.random.seed(hvd.rank())
net = gluon.nn.HybridSequential()
net.add(gluon.nn.Dense(8, activation="relu"), gluon.nn.Dense(1))
net.initialize(mx.init.Xavier())
net.hybridize()
params = net.collect_params()
optimizer = mx.optimizer.create("sgd", learning_rate=0.01 * hvd.size())
trainer = hvd.DistributedTrainer(params, optimizer)
hvd.broadcast_parameters(params, root_rank=0)
loss_fn = gluon.loss.L2Loss()
data = mx.nd.random.uniform(shape=(16, 4))
label = data.sum(axis=1)
for epoch in range(3):
    with autograd.record():
        loss = loss_fn(net(data), label)
    loss.backward()
    trainer.step(16)
total = sum(float(p.data().sum().asscalar()) for p in params.values())
everyone = hvd.allgather(mx.nd.array([total])).asnumpy().tolist()
print(len(set(everyone)), hvd.size(), hvd.broadcast_object(hvd.rank(), root_rank=1))
"""


def test_a_program_written_for_horovod_runs_unchanged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = ran([*HVDRUN, "-np", "2", str(environment("mxnet")), "train.py"], tmp_path, seconds=200, **quiet())
    for rank in range(2):
        assert lines_of(good(done), rank)[-1] == "1 2 1"


PRINTED = "import hvd_kernel.mxnet as hvd, mxnet as mx; print(mx.nd.ones((1,)).asnumpy(), hvd.mpi_ops.library.counters()['pushed'])"


def test_plain_python_imports_our_module_first(tmp_path: Path) -> None:
    done = ran([str(environment("mxnet")), "-P", "-c", PRINTED], tmp_path, seconds=100)
    assert good(done).splitlines()[-1] == "[1.] 0"


def test_engine_that_cannot_wait_is_refused(tmp_path: Path) -> None:
    done = ran([str(environment("mxnet")), "-P", "-c", PRINTED], tmp_path, seconds=100, MXNET_ENGINE_TYPE="NaiveEngine")
    assert done.returncode == 1
    assert "ImportError: hvd_kernel.mxnet: MXNet's NaiveEngine" in done.stderr
