"""Names of ranks in a real kernel: completion and inspection, the table, differences, hints, and the size guard."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from hvdtest.gate import Gate
from hvdtest.kernel import Kernel

from hvd_kernel.magics.commands.variables import BUSY, LAYOUTS, OWN_SHARD_OF, OWN_SHARDS, SAME_SHARD
from hvd_kernel.protocol.distributed_tensors import LOCAL

SETUP = """%%hvdrun
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
weights_of_all = torch.arange(6.0).reshape(2, 3)
shard = torch.full((3,), float(rank))
x = 5
text = 'same'
if rank in (0, 2): partly = [1, 2]
def helper(first, second=2):
    "Adds."
    return first + second
class Trap:
    touched = 0
    @property
    def costly(self):
        Trap.touched += 1
        return 1
    def __repr__(self):
        Trap.touched += 1
        return 'trap'
trap = Trap()
"""


pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.timeout(400),
    # On a busy machine a rank may miss its 0.2 s, and then there is nothing from it.
    pytest.mark.cluster(
        4, setup=(SETUP, "x = 'local'\nonly_here = 1\nto_push = [1]"), figures={"rank_names_ANSWER_S": 20.0}
    ),
]


def reply_to(kernel: Kernel, identity: str) -> dict[str, Any]:
    return kernel._reply(identity, time.monotonic() + 60)


def complete(kernel: Kernel, code: str) -> list[str]:
    matches: list[str] = reply_to(kernel, kernel.client.complete(code))["matches"]
    return matches


def inspect(kernel: Kernel, code: str) -> str:
    text: str = reply_to(kernel, kernel.client.inspect(code))["data"].get("text/plain", "")
    return text


def test_rank_cell_completes_names_of_ranks_not_notebook(kernel: Kernel) -> None:
    assert complete(kernel, "%%hvdrun\nweights") == ["weights_of_all"]
    assert complete(kernel, "# first\n\n%%hvdrun --ranks 2\nif True:\n    y = par") == ["partly"]
    assert complete(kernel, "%%hvdrun --ranks 1\npar") == []
    assert complete(kernel, "%%hvdrun\nwh") == ["while"]
    assert complete(kernel, "%%hvdrun\nlocal_") == ["local_rank"]
    assert "decimal" in complete(kernel, "%%hvdrun\nimport deci")
    assert complete(kernel, "%%hvdrun\nmodel[0].wei") == ["weight"]
    assert complete(kernel, "%%hvdrun\ntorch.nn.ReLU6") == ["ReLU6"]
    assert kernel.run("x").shown == ["'local'"]
    assert "weights_of_all" not in kernel.run("sorted(globals())").shown[0]


def test_rank_cell_completes_pushed_local_names_alone(kernel: Kernel) -> None:
    assert "x" in complete(kernel, "%%hvdrun\nx")
    assert complete(kernel, "%%hvdrun\nonly_h") == []
    assert complete(kernel, "%%hvdrun --push to_push\nto_") == ["to_push"]
    assert complete(kernel, "only_h") == ["only_here"]
    assert complete(kernel, "weights_of") == []


def test_subcommands_complete_names_of_ranks(kernel: Kernel) -> None:
    assert complete(kernel, "%hvdpull weights") == ["weights_of_all"]
    assert complete(kernel, "%hvd check mod") == ["model"]
    assert complete(kernel, "%hvdpush only") == ["only_here"]
    assert complete(kernel, "%hvd che") == ["check"]


def test_with_hvdauto_on_plain_cells_are_rank_cells(kernel: Kernel) -> None:
    kernel.run("%hvdauto on")
    try:
        assert complete(kernel, "weights_of") == ["weights_of_all"]
    finally:
        kernel.run("%hvdauto off")


def test_completion_and_inspection_work_during_a_collective(kernel: Kernel, tmp_path: Path) -> None:
    before = len(kernel.run("sorted(globals())").shown[0])
    with Gate(tmp_path) as gate:
        cell = f"""%%hvdrun
total = torch.ones(1)
{gate.arrive}
while True:
    total = hvd.allreduce(total, name='loop', op=hvd.Average)
    if float(hvd.allreduce(torch.tensor([float({gate.is_open})]), name='end', op=hvd.Max)): break
'done', float(total), Trap.touched
"""
        started = kernel.start(cell)
        gate.wait_for(0, 1, 2, 3)
        assert complete(kernel, "%%hvdrun\nweights") == ["weights_of_all"]
        assert complete(kernel, "%%hvdrun\ntrap.cos") == ["costly"]
        # Without a word on equality: a tensor that a cell may be changing is not read.
        assert inspect(kernel, "%%hvdrun\nshard") == "Type:       Tensor\nValue:      float32 (3,)"
    outcome = kernel.finish_rest(started)
    assert outcome.shown == ["[0-3] ('done', 1.0, 0)"]
    assert kernel.run("x, 'weights_of_all' in globals()").shown == ["('local', False)"]
    assert len(kernel.run("sorted(globals())").shown[0]) - before < 200, "only IPython's own _i and _ names are new"


def test_kernel_is_busy_again_after_an_answer_during_a_cell(kernel: Kernel, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        started = kernel.start(f"%%hvdrun\n{gate.hold}")
        kernel.wait_for("execute_input")
        identity = kernel.client.complete("%%hvdrun\nweights")
        reply_to(kernel, identity)
        states = []
        while len(states) < 3:
            message = kernel.client.get_iopub_msg(timeout=60)
            if message["msg_type"] == "status":
                assert message["parent_header"]["msg_id"] == identity
                states.append(message["content"]["execution_state"])
        assert states == ["busy", "idle", "busy"]
    kernel.finish_rest(started)


def test_inspection_shows_the_type_and_differing_ranks(kernel: Kernel) -> None:
    assert inspect(kernel, "%%hvdrun\nx") == "Type:       int\nValue:      5\nRanks:      same on 4 ranks"
    assert inspect(kernel, "%%hvdrun\nshard").splitlines()[:3] == [
        "Type:       Tensor",
        "Value:      float32 (3,)",
        "Ranks:      different on every rank",
    ]
    assert not reply_to(kernel, kernel.client.inspect("%%hvdrun\nonly_here"))["found"]
    assert "list" in inspect(kernel, "%%hvdrun --push to_push\nto_push")
    assert "Signature:  helper(first, second=2)\nDocstring:  Adds." in inspect(kernel, "%%hvdrun\nhelper")
    assert "Signature:  torch.nn.Linear(" in inspect(kernel, "%%hvdrun\ntorch.nn.Linear")


def test_the_table_of_variables(kernel: Kernel) -> None:
    rows = [line.split() for line in kernel.run("%hvd vars").text().splitlines()]
    assert [row for row in rows if row[0] != "total"] == [
        ["name", "type", "shape", "dtype", "value", "ranks"],
        ["model", "Sequential", "same", "on", "4", "ranks"],
        ["opt", "SGD", "same", "on", "4", "ranks"],
        ["partly", "list", "2", "items", "only", "on", "ranks", "0,2"],
        ["shard", "Tensor", "(3,)", "float32", "different", "on", "every", "rank"],
        ["text", "str", "'same'", "same", "on", "4", "ranks"],
        ["trap", "Trap", "not", "compared"],
        ["weights_of_all", "Tensor", "(2,", "3)", "float32", "same", "on", "4", "ranks"],
        ["x", "int", "5", "same", "on", "4", "ranks"],
    ]
    kernel.run("%%hvdrun --ranks 2\nx = 6; weights_of_all[0, 0] = 9")
    rows = [line.split() for line in kernel.run("%hvd vars x weights_of_all").text().splitlines()[1:]]
    assert rows == [
        ["weights_of_all", "Tensor", "(2,", "3)", "float32", "rank", "2", "differs"],
        ["x", "int", "5", "|", "6", "rank", "2", "differs"],
    ]
    text = kernel.run("%hvd vars x --ranks 0-1").text()
    assert text == "name  type  shape  dtype  value  ranks\nx     int                 5      same on 2 ranks\n"
    kernel.run("%%hvdrun\nx = 5; weights_of_all = torch.arange(6.0).reshape(2, 3)")


def test_check_descends_to_the_first_difference(kernel: Kernel) -> None:
    both = kernel.run("%hvd check model opt").text()
    assert re.fullmatch(r"model is the same on 4 ranks \(5 parts\)\nopt is the same on 4 ranks \(\d+ parts\)\n", both)
    kernel.run("%%hvdrun --ranks 2\nwith torch.no_grad(): model[1].weight[0, 1] += 0.5")
    assert kernel.run("%hvd check model").text() == (
        "model differs: first at 1.weight: ranks 0-1,3 agree, rank 2 differs (max |difference| 0.5)\n"
    )
    kernel.run("%%hvdrun --ranks 0,1\nmodel[0].bias.data[3] = float('nan')")
    assert kernel.run("%hvd check model").text() == (
        "model differs: first at 0.bias: [0-1] [2-3] differ (max |difference| inf); 2 of 5 parts differ\n"
    )
    kernel.run("%%hvdrun --ranks 3\nopt.param_groups[0]['lr'] = 0.2")
    assert kernel.run("%hvd check opt").text() == (
        "opt differs: first at param_groups.0.lr: ranks 0-2 agree, rank 3 differs (ranks 0-2: 0.1, rank 3: 0.2)\n"
    )
    assert kernel.run("%hvd check partly").text() == "partly does not exist on ranks 1,3\n"
    assert kernel.run("%hvd check trap").text() == "trap is not compared: Trap\n"


def test_check_compares_the_random_generators(kernel: Kernel) -> None:
    kernel.run("%%hvdrun\nimport random, numpy\nrandom.seed(1); numpy.random.seed(1); torch.manual_seed(1)")
    assert kernel.run("%hvd check seeds").text().startswith("seeds is the same on 4 ranks (")
    kernel.run("%%hvdrun --ranks 1\ntorch.rand(1)")
    assert kernel.run("%hvd check seeds").text() == (
        "seeds differs: first at torch: ranks 0,2-3 agree, rank 1 differs\n"
    )


SHARDED = """%%hvdrun
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
dist.init_process_group("gloo", init_method={store!r}, rank=rank, world_size=size)
torch.manual_seed(7)
split = fully_shard(torch.nn.Linear(8, 8), mesh=init_device_mesh("cpu", (4,)))
hybrid = distribute_tensor(torch.ones(4, 4), init_device_mesh("cpu", (2, 2)), [Replicate(), Shard(0)])
"""


def test_check_compares_the_shards_that_several_ranks_hold(kernel: Kernel, tmp_path: Path) -> None:
    """A fully sharded model was "the same on 4 ranks" though nothing of it was compared."""
    kernel.run(SHARDED.format(store=f"file://{tmp_path}/store"), timeout=120)
    own_shards = OWN_SHARD_OF.format(tensors="2 tensors")
    sentence = f"split is not compared: {own_shards}; {LAYOUTS} are the same on 4 ranks"
    assert kernel.run("%hvd check split").text() == f"{sentence}\n"
    assert kernel.run("%hvd check split --strict", allow_error=True).error == f"RanksDiffer: {sentence}"
    assert kernel.run("%hvd check hybrid --strict").text() == "hybrid is the same on 4 ranks (2 parts)\n"
    shown = [re.split(r"\s{2,}", line) for line in kernel.run("%hvd vars split hybrid").text().splitlines()[1:]]
    on_square = "Replicate(), Shard(dim=0) on mesh (2, 2), 32 B per rank"
    assert shown == [
        ["hybrid", "DTensor", "(4, 4)", "float32", on_square, "same on 4 ranks"],
        ["split", "FSDPLinear", "72 parameters", "float32", "Shard(dim=0) on mesh (4), 72 B per rank", OWN_SHARDS],
    ]
    weighed = [re.split(r"\s{2,}", line)[:3] for line in kernel.run("%hvd memory").text().splitlines()]
    assert ["split", "FSDPLinear 72 parameters, Shard(dim=0) on mesh (4)", "72 B"] in weighed
    kernel.run("%%hvdrun\nif rank == 3: hybrid.to_local()[0, 0] += 0.5")
    assert kernel.run("%hvd check hybrid").text() == (
        f"hybrid differs: first at {LOCAL}: {SAME_SHARD.format(ranks='ranks 1,3')} (max |difference| 0.5)\n"
    )
    kernel.run("%%hvdrun\ndist.destroy_process_group()\ndel split, hybrid")


def test_check_is_an_error_only_when_it_is_strict(kernel: Kernel) -> None:
    kernel.run("%%hvdrun\nown = rank // 2")
    good = kernel.run("%hvd check text --strict")
    assert good.text() == "text is the same on 4 ranks (1 part)\n"
    bad = kernel.run("%hvd check text own --strict", allow_error=True)
    assert bad.reply["ename"] == "RanksDiffer"
    assert bad.error == "RanksDiffer: own differs: [0-1] [2-3] differ (ranks 0-1: 0, ranks 2-3: 1)"
    refused = kernel.run("%hvd check not_there", allow_error=True)
    assert refused.error == "UsageError: %hvd check: no rank has a variable `not_there`"


def test_local_name_error_tells_which_ranks_define_the_name(kernel: Kernel) -> None:
    def last(code: str) -> list[str]:
        outcome = kernel.run(code, allow_error=True)
        assert outcome.reply["ename"] == "NameError"
        return outcome.error.splitlines()[-2:]

    assert last("weights_of_all + 1") == [
        "NameError: name 'weights_of_all' is not defined",
        "`weights_of_all` exists on the ranks, not in the notebook: %hvdpull weights_of_all, or begin the cell with %%hvdrun",
    ]
    assert last("def f(): return partly\nf()")[1].startswith(
        "`partly` exists on ranks 0,2, not in the notebook: %hvdpull partly"
    )
    plain = kernel.run("nowhere_at_all", allow_error=True)
    assert plain.error.splitlines()[-1] == "NameError: name 'nowhere_at_all' is not defined"
    there = kernel.run("%%hvdrun\nonly_here", allow_error=True)
    assert there.error.splitlines()[-1] == "`only_here` exists in the notebook, not on the ranks: add --push only_here"


def test_size_guard_refuses_before_a_transfer_with_remedy(kernel: Kernel) -> None:
    kernel.run(
        "import numpy, os; os.environ['HVD_MAX_MOVE'] = '10M'; big = numpy.zeros(1 << 19)"
    )  # 4 MiB, 16 on four ranks
    refused = kernel.run("%hvdpush big", allow_error=True)
    assert refused.error == (
        "UsageError: pushing `big` 16 MiB would move more than 10 MiB: push to one rank (--ranks 0), take a slice, "
        "or lift the limit by --force or HVD_MAX_MOVE"
    )
    assert kernel.run("%%hvdrun\n'big' in globals()").shown == ["[0-3] False"]
    assert kernel.run("%%hvdrun --push big\n1", allow_error=True).reply["ename"] == "UsageError"
    kernel.run("%hvdpush big --ranks 0-1")
    kernel.run("%hvdpush big --force")
    kernel.run("del big")
    refused = kernel.run("%hvdpull big x", allow_error=True)
    assert refused.error == (
        "UsageError: pulling `big` 16 MiB, `x` 0 B would move more than 10 MiB: pull from one rank (--ranks 0), "
        "take a slice, or lift the limit by --force or HVD_MAX_MOVE"
    )
    assert kernel.run("'big' in globals()").shown == ["False"]
    kernel.run("%hvdpull big --ranks 3")
    assert kernel.run("big.shape").shown == ["(524288,)"]
    kernel.run("%%hvdrun --pull big --force\n1")
    assert kernel.run("[*big.keys()], big[2].nbytes").shown == ["([0, 1, 2, 3], 4194304)"]
    refused = kernel.run("%%hvdrun -o res\nbig", allow_error=True)
    assert "pulling `the last expression` 16 MiB would move more than 10 MiB" in refused.error
    kernel.run("%%hvdrun -o res --force\nbig")
    assert kernel.run("[res[r].nbytes for r in range(4)]").shown == ["[4194304, 4194304, 4194304, 4194304]"]


def test_big_tensors_are_sent_unchanged_both_ways(kernel: Kernel) -> None:
    kernel.run(
        "import torch\nsent = torch.arange(1 << 18, dtype=torch.float32)\nhalf = torch.ones(5, dtype=torch.bfloat16)"
    )
    kernel.run("%hvdpush sent half")
    assert kernel.run("%%hvdrun\nfloat(sent.double().sum()), half.dtype").shown == [
        "[0-3] (34359607296.0, torch.bfloat16)"
    ]
    kernel.run("%%hvdrun --pull sent\nsent += rank")
    assert kernel.run("[float(sent[r][-1]) for r in range(4)]").shown == ["[262143.0, 262144.0, 262145.0, 262146.0]"]


def test_the_table_answers_while_a_job_runs_and_reads_no_tensor(kernel: Kernel, tmp_path: Path) -> None:
    with Gate(tmp_path) as gate:
        kernel.run(f"%%hvdrun --bg slow\n{gate.arrive}\n{gate.hold}")
        gate.wait_for(0, 1, 2, 3)
        text = kernel.run("%hvd vars x model").text()
    assert text == (
        f"name   type        shape  dtype  value  ranks\nmodel  Sequential\nx      int                       5\n{BUSY}"
    )
    kernel.run("%hvdjobs --wait slow", timeout=60)
