"""JAX, end to end: two ranks of hvdrun, a compiled operation, its gradient, and a step with optax.

The default tier's only test of JAX: the first one to run makes the environment.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hvdtest.environments import environment, quiet
from hvdtest.hvdrun import HVDRUN, good, lines_of, ran

SCRIPT = """
import json
import jax
import jax.numpy as jnp
import optax
import hvd_kernel.jax as hvd

hvd.init()
rank = hvd.rank()
total = jax.jit(lambda x: hvd.allreduce(x, op=hvd.Sum))(jnp.array([rank + 1.0]))
slope = jax.jit(jax.grad(lambda x: hvd.allreduce(x * (rank + 1.0), op=hvd.Sum)))(1.0)
tx = hvd.DistributedGradientTransformation(optax.sgd(0.5))
weights = hvd.broadcast_parameters({"w": jnp.array([8.0 + rank])}, root_rank=1)
state = tx.init(weights)

@jax.jit
def step(weights, state):
    gradients = jax.grad(lambda w: w["w"][0] * (rank + 1.0))(weights)
    updates, state = tx.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state

for _ in range(2):
    weights, state = step(weights, state)
print(json.dumps([float(total[0]), float(slope), float(weights["w"][0])]))
"""


@pytest.mark.timeout(600)
def test_a_compiled_step_on_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [*HVDRUN, "-np", "2", str(environment("jaxnew")), str(script)]
    said = good(ran(command, seconds=300, **quiet()))
    # 1 + 2; each rank's share of the sum has the gradient 1 + 1 of its own factor; 9 less twice 0.5 x the mean of 1 and 2
    assert [json.loads(lines_of(said, rank)[-1]) for rank in range(2)] == [[3.0, 2.0, 7.5], [3.0, 4.0, 7.5]]
