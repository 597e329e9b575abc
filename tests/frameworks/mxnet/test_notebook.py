"""MXNet in cells, in a real kernel without torch: hvd, check, interrupts, new ranks, detached ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.cluster import until
from hvdtest.framework_cells import FIRST, SECOND, detached_ranks
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.nightly, pytest.mark.mp, pytest.mark.timeout(400)]

SETUP = """%%hvdrun
import os, signal, sys, time
from pathlib import Path
import mxnet as mx
net = mx.gluon.nn.Dense(1, in_units=2, use_bias=False)
net.initialize(mx.init.Constant(1.0))
trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.5, "momentum": 0.5})
"""
STEP = """%%hvdrun
def step():
    with mx.autograd.record():
        loss = net(mx.nd.ones((1, 2)) * (rank + 1)).sum()
    loss.backward()
    trainer.step(1)
    return net.weight.data().asnumpy().tolist()
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    with detached_ranks(tmp_path_factory.mktemp("kernel"), "mxnet", "mxnet") as kernel:
        yield kernel


@pytest.fixture
def cells(running: Kernel) -> Kernel:
    running.run(SETUP)
    running.run(STEP)
    return running


def said(weight: float) -> list[str]:
    return [f"[0-1] {[[weight, weight]]}"]


def test_hvd_is_the_mxnet_api_without_torch(cells: Kernel) -> None:
    shown = cells.run("%%hvdrun\nhvd.__name__, 'torch' in sys.modules, str(device)").shown
    assert shown == ["[0-1] ('hvd_kernel.mxnet', False, 'cpu(0)')"]
    assert cells.run("%%hvdrun\nstep()").shown[-1:] == said(FIRST)


def test_plain_trainers_are_warned(cells: Kernel) -> None:
    """The guard against training apart counts steps of gluon.Trainer; ranks that averaged before may make 1,024 steps."""
    plain = 'mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=None)'
    loop = "for _ in range(1100):\n    _ = step()"
    assert "hvd_kernel:" not in cells.run(f"%%hvdrun\n{loop}").text("stderr")
    outcome = cells.run(f"%%hvdrun\ntrainer = {plain}\n{loop}")
    assert outcome.text("stderr").count("hvd_kernel: ranks 0-1 train separate models") == 1


def test_check_names_the_difference(cells: Kernel) -> None:
    cells.run("%%hvdrun\nnet.weight.set_data(mx.nd.ones((1, 2)) * rank)")
    assert cells.run("%hvd check net").text().startswith("net differs: first at weight.0: different on every rank")
    cells.run("%%hvdrun\nhvd.broadcast_parameters(net.collect_params(), root_rank=0)")
    told = cells.run("%hvd check net trainer").text().splitlines()
    assert [line.split(" (")[0] for line in told] == ["net is the same on 2 ranks", "trainer is the same on 2 ranks"]


WAITS = {
    "one rank computes": "hvd.allreduce(mx.nd.ones((1,)), name='one').asnumpy() if rank else time.sleep(600)",
    "each waits for another": "hvd.allreduce(mx.nd.ones((1,)), name=f'of rank {rank}').wait_to_read()",
    "for all": "kept = hvd.allreduce(mx.nd.ones((1,)), name=f'all of rank {rank}')\nmx.nd.waitall()",
}


@pytest.mark.parametrize("what", WAITS)
def test_interrupt_ends_a_wait_of_mxnet(cells: Kernel, what: str, tmp_path: Path) -> None:
    inside = f"Path({str(tmp_path)!r}, str(rank)).touch()"
    started = cells.start(f"%%hvdrun\n{inside}\n{WAITS[what]}", prompts=True)
    until(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks in the cell")
    cells.press()
    outcome = cells.finish_rest(started, allow_error=True)
    assert outcome.error.splitlines()[0] == "KeyboardInterrupt: ranks 0-1 interrupted, variables are kept"
    assert cells.run("%%hvdrun\nstep()").shown[-1:] == said(FIRST)


def test_new_rank_gets_net_and_trainer(cells: Kernel) -> None:
    cells.run("%%hvdrun\nstep()")
    killed = "os.kill(os.getpid(), signal.SIGKILL) if rank else hvd.allreduce(mx.nd.ones((1,))).wait_to_read()"
    outcome = cells.run(f"%%hvdrun\n{killed}", allow_error=True)
    assert outcome.reply["ename"] == "RankDied"
    told = cells.run("%hvd respawn --restore mx,net,trainer,step", timeout=200).text()
    assert told.startswith("rank 1 is fresh: it has mx, net, trainer, step from rank 0")
    assert cells.run("%%hvdrun\nstep()").shown[-1:] == said(SECOND)


def test_detached_ranks_keep_net_and_trainer_after_a_restart(cells: Kernel) -> None:
    cells.run("%%hvdrun\nstep()")
    cells.restart()
    assert cells.run("%hvd attach mxnet").text() == "mxnet: ranks 0-1 ready, with all variables\n"
    assert cells.run("%%hvdrun\nstep()").shown[-1:] == said(SECOND)
