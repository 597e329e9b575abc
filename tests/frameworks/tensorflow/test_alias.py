"""``import horovod.tensorflow as hvd``: its modules, programs written for Horovod, and environments without TensorFlow (F21)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hvdtest.environments import environment, quiet
from hvdtest.hvdrun import HVDRUN, good, lines_of, ran
from hvdtest.launch import RankPool
from hvdtest.venvs import output_of, venv_with_ours

from hvd_kernel.formatting.install_command import install_command

nightly = pytest.mark.nightly
LISTS = tomllib.loads((Path(__file__).parents[1] / "horovod_names" / "modules.toml").read_text())
MODULES = LISTS["needs_tensorflow"] + LISTS["needs_keras"]
SERVICE = LISTS["not_with_tensorflow"]
NAMES = """
    Adasum Average BroadcastGlobalVariablesHook Compression DistributedGradientTape DistributedOptimizer
    LocalGradientAggregationHelper Max Min PartialDistributedGradientTape ProcessSet Product Sum
    SyncBatchNormalization _executing_eagerly _make_subgraph _cache add_process_set allgather allgather_object
    allreduce alltoall broadcast broadcast_ broadcast_global_variables broadcast_object broadcast_object_fn
    broadcast_variables ccl_built check_num_rank_power_of_2 cross_rank cross_size cuda_built ddl_built elastic
    global_process_set gloo_built gloo_enabled gpu_available grouped_allgather grouped_allreduce grouped_reducescatter
    handle_average_backwards_compatibility init is_homogeneous is_initialized join local_rank local_rank_op local_size
    local_size_op mpi_built mpi_enabled mpi_threads_supported nccl_built process_set_included_op rank rank_op
    reducescatter remove_process_set rocm_built shutdown size size_op start_timeline stop_timeline
"""


# Those of horovod.tensorflow.mpi_ops, but for what Horovod's compiled library is behind; of horovod._keras all.
OF_MPI_OPS = """
    Adasum Average Max Min Product ProcessSet Sum _allgather_grad _allreduce _allreduce_grad _alltoall_grad _basics
    _broadcast_grad _executing_eagerly _grouped_allgather_grad _grouped_allreduce _grouped_allreduce_grad
    _grouped_reducescatter _grouped_reducescatter_grad _normalize_name _reducescatter _reducescatter_grad
    add_process_set allgather alltoall broadcast broadcast_ ccl_built check_installed_version check_num_rank_power_of_2
    cross_rank cross_size cuda_built ddl_built get_average_backwards_compatibility_fun get_ext_suffix
    global_process_set gloo_built gloo_enabled gpu_available grouped_allgather
    handle_average_backwards_compatibility init is_homogeneous is_initialized join local_rank local_rank_op local_size
    local_size_op mpi_built mpi_enabled mpi_threads_supported nccl_built num_rank_is_power_2 process_set_included_op
    rank rank_op remove_process_set rocm_built shutdown size size_op start_timeline stop_timeline
"""
OF_KERAS = {
    "horovod._keras": "allgather allreduce broadcast broadcast_global_variables check_keras_optimizer_type"
    " create_distributed_optimizer get_keras_optimizer_base_type load_model reducescatter",
    "horovod._keras.callbacks": "BroadcastGlobalVariablesCallbackImpl LearningRateScheduleCallbackImpl"
    " LearningRateWarmupCallbackImpl MetricAverageCallbackImpl",
    "horovod._keras.elastic": "CommitStateCallbackImpl UpdateBatchStateCallbackImpl UpdateEpochStateCallbackImpl",
}


def inner_names(listed: dict[str, list[str]]) -> dict[str, Any]:
    import importlib

    import tensorflow as tf

    from hvd_kernel import compat

    compat.install()
    import horovod._keras as inner
    import horovod.tensorflow as hvd
    from horovod._keras.callbacks import MetricAverageCallbackImpl
    from horovod._keras.elastic import CommitStateCallbackImpl
    from horovod.tensorflow import mpi_ops

    hvd.init()
    keras, rank = tf.keras, hvd.rank()

    class Averages(MetricAverageCallbackImpl, keras.callbacks.Callback):
        def __init__(self, device: str = "") -> None:
            super().__init__(keras.backend, device)

    logs = {"loss": float(rank)}
    Averages().on_epoch_end(0, logs)
    none = hvd.Compression.none
    made = inner.create_distributed_optimizer(keras, keras.optimizers.SGD(0.1), None, "", "", none, False)
    with pytest.raises(ValueError, match="Optimizer has to be an instance of"):
        inner.check_keras_optimizer_type(keras, "sgd")
    inner.check_keras_optimizer_type(keras, made)
    return {
        "missing": [
            f"{module}.{name}"
            for module, names in listed.items()
            for name in names
            if not hasattr(importlib.import_module(module), name)
        ],
        "built": [mpi_ops.gloo_built(), mpi_ops.mpi_enabled(), mpi_ops._normalize_name("a/b:0")],
        "values": [
            float(inner.allreduce(None, rank + 1.0, "x", None)),
            int(inner.broadcast(None, rank, 1, "y").numpy()),
        ],
        "logs": logs,
        "optimizer": type(made).__name__,
        "commits": CommitStateCallbackImpl(keras.backend, None, 3).batches_per_commit,
    }


@nightly
@pytest.mark.mp
def test_names_that_horovods_frontends_use(tf_ranks: RankPool) -> None:
    listed = {"horovod.tensorflow.mpi_ops": OF_MPI_OPS.split()}
    listed |= {module: names.split() for module, names in OF_KERAS.items()}
    for found in tf_ranks.run(inner_names, listed):
        assert found == {
            "missing": [],
            "built": [True, False, "a_b_0"],
            "values": [1.5, 1],
            "logs": {"loss": 0.5},
            "optimizer": "SGD",
            "commits": 3,
        }


def modules(listed: list[str], service: list[str], names: list[str]) -> dict[str, Any]:
    import importlib
    import sys

    from hvd_kernel import compat

    compat.install()
    import horovod.tensorflow as hvd

    for name in listed:
        importlib.import_module(name)
    told = []
    for name in service:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            told.append(str(error).partition(": ")[0])
    import tensorflow as tf
    from horovod.common.util import check_extension, extension_available, gpu_available
    from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
    from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
    from horovod.tensorflow.mpi_ops import _basics
    from horovod.tensorflow.util import refs_to_vars, vars_to_refs

    hvd.init()
    check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", __file__, "mpi_lib")
    one, other = tf.Variable(1.0), tf.Variable(2.0)
    back = refs_to_vars(vars_to_refs([[one], [other]]))
    w = tf.Variable([1.0])
    helper = LocalGradientAggregationHelperEager(2, lambda grads, _: [hvd.allreduce(g) for g in grads], False, True)
    passes = [helper.compute_gradients([tf.constant([hvd.rank() + n])], [w])[0].numpy().tolist() for n in (1.0, 3.0)]
    return {
        "missing": [name for name in names if not hasattr(hvd, name)],
        "service": told,
        "same": sys.modules["horovod.tensorflow"] is sys.modules["hvd_kernel.tensorflow"],
        "available": [
            extension_available("tensorflow"),
            gpu_available("tensorflow"),
            hvd.gloo_built(),
            hvd.mpi_enabled(),
        ],
        "basics": [_basics.size(), _basics.is_initialized()],
        "refs": [back[0][0] is one, back[1][0] is other],
        "helpers": [issubclass(hvd.LocalGradientAggregationHelper, LocalGradientAggregationHelper), passes],
        "torch": "torch" in sys.modules,
    }


@nightly
@pytest.mark.mp
def test_every_module_and_name(tf_ranks: RankPool) -> None:
    for rank, found in enumerate(tf_ranks.run(modules, MODULES, SERVICE, NAMES.split())):
        assert found == {
            "missing": [],
            "service": ["No module named 'horovod.tensorflow.data'"] * len(SERVICE),
            "same": True,
            "available": [True, False, True, False],
            "basics": [2, True],
            "refs": [True, True],
            "helpers": [True, [[rank + 1.0], [2.5]]],  # the average of (1 + 3) / 2 and (2 + 4) / 2
            "torch": False,
        }


TAPE = """
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

images = tf.random.stateless_normal([32, 8, 8, 1], [hvd.rank(), 1])
labels = tf.random.stateless_uniform([32], [hvd.rank(), 2], 0, 3, tf.int64)
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(32).batch(8)
tf.random.set_seed(hvd.rank())
model = tf.keras.Sequential([
    tf.keras.layers.Conv2D(4, [3, 3], activation="relu"),
    tf.keras.layers.Flatten(),
    tf.keras.layers.Dropout(0.5),
    tf.keras.layers.Dense(3, activation="softmax"),
])
loss = tf.losses.SparseCategoricalCrossentropy()
opt = tf.optimizers.Adam(0.001 * hvd.size())
checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)

@tf.function
def training_step(images, labels, first_batch):
    with tf.GradientTape() as tape:
        probs = model(images, training=True)
        loss_value = loss(labels, probs)
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss_value, model.trainable_variables)
    opt.apply_gradients(zip(grads, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(opt.variables, root_rank=0)
    return loss_value

for batch, (images, labels) in enumerate(dataset.take(12 // hvd.size())):
    loss_value = training_step(images, labels, batch == 0)
    if batch % 10 == 0 and hvd.local_rank() == 0:
        assert loss_value > 0
if hvd.rank() == 0:
    checkpoint.save("./checkpoints/model")
mine = tf.concat([tf.reshape(tf.cast(v, tf.float64), [-1]) for v in model.trainable_variables], 0)
everyone = hvd.allgather(mine[tf.newaxis])
import sys
print(bool(tf.reduce_all(everyone[0] == everyone[1])), int(opt.iterations), "torch" in sys.modules)
"""
SESSION = """
import tensorflow.compat.v1 as tf
tf.disable_v2_behavior()
import horovod.tensorflow as hvd

hvd.init()
config = tf.ConfigProto()
config.gpu_options.visible_device_list = str(hvd.local_rank())
w = tf.get_variable("w", initializer=tf.constant([1.0, 2.0]) * (hvd.rank() + 1))
loss = 0.5 * (hvd.rank() + 1) * tf.reduce_sum(w * w)
opt = tf.train.GradientDescentOptimizer(0.125 * hvd.size())
opt = hvd.DistributedOptimizer(opt)
step = tf.train.get_or_create_global_step()
train_op = opt.minimize(loss, global_step=step)
hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(last_step=4 // hvd.size())]
checkpoint_dir = "./checkpoints" if hvd.rank() == 0 else None
with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, config=config, hooks=hooks) as mon_sess:
    while not mon_sess.should_stop():
        _, weights = mon_sess.run([train_op, w])
        done = mon_sess._coordinated_creator.tf_sess.run(w)
print(done.tolist())
"""


def of_keras() -> list[Any]:
    import tensorflow as tf

    import hvd_kernel.tensorflow as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0))
    w = tf.Variable([1.0, 2.0])
    optimizer.build([w])
    optimizer.apply_gradients([(tf.constant([1.0, 1.0]) * (hvd.rank() + 1), w)])
    with pytest.raises(ValueError, match="op == Adasum is not supported yet with Keras"):
        hvd.DistributedOptimizer(tf.keras.optimizers.SGD(1.0), op=hvd.Adasum)
    return [type(optimizer).__name__, w.numpy().tolist()]


@nightly
@pytest.mark.mp
def test_keras_optimizer_is_passed_to_keras(tf_ranks: RankPool) -> None:
    assert tf_ranks.run(of_keras) == [["SGD", [-0.5, 0.5]]] * 2


@nightly
@pytest.mark.mp
@pytest.mark.parametrize(
    ("script", "said_by_each"), [(TAPE, "True 6 False"), (SESSION, "[0.390625, 0.78125]")], ids=["tape", "session"]
)
def test_programs_written_for_horovod_run_unchanged(tmp_path: Path, script: str, said_by_each: str) -> None:
    (tmp_path / "train.py").write_text(script)
    done = ran([*HVDRUN, "-np", "2", str(environment("tf221")), "train.py"], tmp_path, seconds=200, **quiet())
    for rank in range(2):
        assert lines_of(good(done), rank)[-1] == said_by_each
    assert (tmp_path / "checkpoints" / "checkpoint").exists()


ASKED = """
import importlib, sys
import hvd_kernel
from hvd_kernel import compat
compat.install()
for name in ("hvd_kernel.tensorflow", "horovod.tensorflow", "hvd_kernel.tensorflow.elastic"):
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(type(error).__name__, error)
"""
MISSING = (
    "ModuleNotFoundError hvd_kernel.tensorflow needs TensorFlow, which is not installed in this Python: "
    f"{install_command('tensorflow')}"
)
OLD = (
    "ImportError hvd_kernel.tensorflow needs TensorFlow 2.13 or newer, and this Python has 2.12.1, whose operations "
    f"cannot wait for other ranks without blocking a thread: {install_command('tensorflow', '--upgrade')}"
)


@nightly
@pytest.mark.parametrize(("version", "told"), [(None, MISSING), ("2.12.1", OLD)], ids=["none", "2.12"])
def test_without_a_usable_tensorflow_the_error_names_the_install(
    tmp_path: Path, version: str | None, told: str
) -> None:
    python = venv_with_ours(tmp_path / "venv")
    if version is None:
        (tmp_path / "sitecustomize.py").write_text(
            "import importlib.util as u\nfound = u.find_spec\n"
            "u.find_spec = lambda name, *more: None if name == 'tensorflow' else found(name, *more)\n"
        )
    else:
        (tmp_path / "tensorflow.py").write_text(f"__version__ = {version!r}\n")
    assert output_of(python, "-c", ASKED, PYTHONPATH=str(tmp_path)).splitlines() == [told] * 3
