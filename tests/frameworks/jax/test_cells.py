"""JAX in cells, in a real kernel without torch: hvd, check by path, panel, doctor, new ranks, detached ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hvdtest.framework_cells import FIRST, SECOND, detached_ranks
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.jupyter, pytest.mark.timeout(400)]

SETUP = """%%hvdrun
import os, signal, sys
import jax, jax.numpy as jnp, optax
params = {"layers": [{"kernel": jnp.ones((3, 1)), "bias": jnp.zeros(1)}]}
tx = hvd.DistributedGradientTransformation(optax.sgd(0.5, momentum=0.5))
opt_state = tx.init(params)
"""
STEP = """%%hvdrun
def loss_fn(params, x):
    return (x @ params["layers"][0]["kernel"] + params["layers"][0]["bias"]).sum() / len(x)

@jax.jit
def step(params, opt_state, x):
    loss, grads = jax.value_and_grad(loss_fn)(params, x)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state

def train():
    global params, opt_state
    params, opt_state = step(params, opt_state, jnp.full((4, 3), rank + 1.0))
    return params["layers"][0]["kernel"][0].tolist()
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with detached_ranks(tmp_path_factory.mktemp("kernel"), "jax", "jaxnew") as kernel:
        yield kernel


@pytest.fixture
def cells(running: Kernel) -> Kernel:
    running.run(SETUP)
    running.run(STEP)
    return running


def said(weight: float) -> list[str]:
    return [f"[0-1] {[weight]}"]


def test_hvd_is_the_jax_api_without_torch(cells: Kernel) -> None:
    shown = cells.run("%%hvdrun\nhvd.__name__, 'torch' in sys.modules, device.platform").shown
    assert shown == ["[0-1] ('hvd_kernel.jax', False, 'cpu')"]
    assert cells.run("%%hvdrun\ntrain()").shown[-1:] == said(FIRST)


TRAINS = """%%hvdrun
@jax.jit
def counted(params, opt_state, x):
    grads = jax.grad(loss_fn)(params, x)
    updates, opt_state = tx.update(grads, opt_state, params, samples=len(x))
    return optax.apply_updates(params, updates), opt_state

from hvd_kernel.core import metrics
before = metrics.snapshot()
for _ in range(20):
    params, opt_state = counted(params, opt_state, jnp.full((4, 3), rank + 1.0))
after = metrics.snapshot()
after.step - before.step, after.samples - before.samples
"""


def test_panel_shows_steps_and_samples(cells: Kernel) -> None:
    trained = cells.run(TRAINS)
    assert trained.shown[-1:] == ["[0-1] (20, 80)"]
    (panel,) = (each for each in trained.contents("display_data") if each["metadata"])
    figures = panel["metadata"]["hvd"]
    assert all(figures["samples_per_s"]["per_rank"][rank] > 0 for rank in ("0", "1"))


def test_doctor_reports_which_parts_of_jax_work(cells: Kernel) -> None:
    told = cells.run("%hvd doctor").text()
    assert "JAX 0.10.2 (in jit and outside of it)" in told
    assert "PyTorch" not in told


def test_check_names_a_difference_by_its_path_in_the_tree(cells: Kernel) -> None:
    cells.run("%%hvdrun\nparams['layers'][0]['bias'] = jnp.full(1, float(rank))")
    told = cells.run("%hvd check params").text()
    assert told.startswith("params differs: first at layers.0.bias: different on every rank"), told
    cells.run("%%hvdrun\nparams = hvd.broadcast_parameters(params)")
    lines = cells.run("%hvd check params opt_state").text().splitlines()
    assert [line.split(" (")[0] for line in lines] == [
        "params is the same on 2 ranks",
        "opt_state is the same on 2 ranks",
    ]


def test_new_rank_gets_trees_and_compiled_functions(cells: Kernel) -> None:
    """One died inside a program; the other's kernel and variables live."""
    cells.run("%%hvdrun\ntrain()")
    killed = "os.kill(os.getpid(), signal.SIGKILL) if rank else jax.jit(hvd.allreduce)(jnp.ones(1000))"
    outcome = cells.run(f"%%hvdrun\n{killed}", allow_error=True)
    assert "rank 1 (process" in outcome.error
    assert "has died" in outcome.error
    told = cells.run("%hvd respawn --restore jax,jnp,optax,params,opt_state,tx,loss_fn,step,train", timeout=200).text()
    assert told.startswith("rank 1 is fresh: it has "), told
    assert cells.run("%%hvdrun\ntrain()").shown[-1:] == said(SECOND)


def test_detached_ranks_keep_their_trees_after_a_kernel_restart(cells: Kernel) -> None:
    cells.run("%%hvdrun\ntrain()")
    cells.restart()
    assert cells.run("%hvd attach jax").text() == "jax: ranks 0-1 ready, with all variables\n"
    assert cells.run("%%hvdrun\ntrain()").shown[-1:] == said(SECOND)
