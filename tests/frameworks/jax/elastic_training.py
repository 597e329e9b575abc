"""Training with JAX of the elastic jobs of test_elastic.py: rank 0 appends a line per epoch to a log.

    python elastic_training.py PLAN        as tests/elastic/training.py has it; of it log, epochs, batches, waits, exits

How of an exit is "kill": within a compiled step, in which the other ranks wait.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp

import hvd_kernel.jax as hvd
from hvd_kernel.elastic.updates import notification_manager

plan = json.loads(Path(sys.argv[1]).read_text())
worker = int(os.environ["HVD_WORKER"])
heard = threading.Event()


class Changes:
    """Hears of changed hosts, beside the state."""

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        heard.set()


@jax.jit
def step(params: dict[str, jax.Array]) -> tuple[dict[str, jax.Array], jax.Array]:
    """Each element grows by 1; the second result has a row of each rank, so that its shape knows how many there are."""
    grown = hvd.grouped_allreduce(jax.tree.map(jnp.ones_like, params))
    return jax.tree.map(jnp.add, params, grown), hvd.allgather(jnp.full(1, worker))


@hvd.elastic.run
def train(state: hvd.elastic.JaxState) -> None:
    while state.epoch < plan["epochs"]:
        while state.batch < plan["batches"]:
            if plan["exits"].get(f"{state.epoch},{state.batch}", {}).get(str(worker)) == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            state.params, workers = step(state.params)
            state.batch += 1
            state.commit()
        heard.clear()
        log(state, workers)
        if state.epoch in plan["waits"] and hvd.rank() == 0:
            assert heard.wait(120), "nobody has told of changed hosts"
        state.epoch, state.batch = state.epoch + 1, 0
        state.commit()


def log(state: hvd.elastic.JaxState, workers: jax.Array) -> None:
    everyone = hvd.allgather_object(jax.tree.map(lambda each: each.tolist(), state.params))
    line = {
        "params": everyone[0],
        "alike": all(each == everyone[0] for each in everyone),
        "workers": workers.tolist(),
        "size": hvd.size(),
    }
    if hvd.rank() == 0:
        with Path(plan["log"]).open("a") as file:
            file.write(json.dumps(line) + "\n")


hvd.init()
notification_manager.register_listener(Changes())
train(hvd.elastic.JaxState(params={"w": jnp.zeros((2, 2)), "b": [jnp.zeros(1, "bfloat16")]}, epoch=0, batch=0))
