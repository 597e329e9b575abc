"""``--scatter`` and ``--gather``, ``%hvd barrier`` and ``%hvd gc`` on real ranks."""

from __future__ import annotations

import re

import pytest
from hvdtest.hvdrun import FAULTS
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.timeout(400), pytest.mark.cluster(3)]


def test_each_rank_gets_its_part_and_the_notebook_the_whole(kernel: Kernel) -> None:
    kernel.run(
        "import numpy as np, torch\nx = np.arange(14.0).reshape(7, 2)\nt = torch.arange(4)\nnames = list('abcd')"
    )
    cell = "%%hvdrun -np 3 --scatter x,t,names --gather y,t,names\ny = 10 * x\nt += rank\n(x.shape, t.tolist(), names)"
    shown = kernel.run(cell, timeout=120).shown
    assert shown == ["[0] ((3, 2), [0, 1], ['a', 'b'])\n[1] ((2, 2), [3], ['c'])\n[2] ((2, 2), [5], ['d'])"]
    assert kernel.run("(np.array_equal(y, 10 * x), x.shape, t, names)").shown == [
        "(True, (7, 2), tensor([0, 1, 3, 5]), ['a', 'b', 'c', 'd'])"
    ]


def test_values_that_cannot_be_gathered_stay_on_the_ranks(kernel: Kernel) -> None:
    kernel.run("import numpy as np\nx = np.ma.masked_array([1, 2, 3], [0, 1, 0])")
    cell = "%%hvdrun -np 3 --scatter x --gather bad,x\nx = x * 10\nbad = {rank: rank}"
    refused = kernel.run(cell, timeout=120, allow_error=True)
    assert refused.error.startswith("UsageError: `bad` cannot be gathered: two values of the type dict")
    assert refused.error.endswith("; the ranks still have their values: `%hvdpull bad` copies them here")
    assert kernel.run("x.data.tolist(), x.mask.tolist()").shown == ["([10, 2, 30], [False, True, False])"]
    assert kernel.run("%hvdpull bad\nlist(bad)").shown == ["[{0: 0}, {1: 1}, {2: 2}]"]


@pytest.mark.nightly
def test_scatter_over_some_ranks_splits_the_whole_value(kernel: Kernel) -> None:
    kernel.run("x = list(range(5))")
    assert kernel.run("%%hvdrun -np 3 --ranks 0,2 --scatter x --gather x\nx = [rank, *x]\nx", timeout=120).shown == [
        "[0] [0, 0, 1, 2]\n[2] [2, 3, 4]"
    ]
    assert kernel.run("x").shown == ["[0, 0, 1, 2, 2, 3, 4]"]


@pytest.mark.nightly
def test_indivisible_values_are_refused_before_any_transfer(kernel: Kernel) -> None:
    kernel.run("x, y = 3, [1]")
    outcome = kernel.run("%%hvdrun -np 3 --scatter x --push y\nran = 1", timeout=120, allow_error=True)
    assert "`x` (int) cannot be scattered: it has no parts; --push x sends all of it to every rank" in outcome.error
    assert kernel.run("%%hvdrun -np 3\n[name in globals() for name in ('ran', 'y')]").shown == ["[0-2] [False, False]"]


@pytest.mark.nightly
def test_failed_cell_stores_its_error_in_the_gathered_name(kernel: Kernel) -> None:
    kernel.run("%%hvdrun -np 3 --gather y --no-raise-error\ny = [rank]\n1 / 0", timeout=120)
    assert kernel.run("type(y).__name__").shown == ["'ZeroDivisionError'"]


def test_barrier_lists_ranks_and_gc_frees_an_exception(kernel: Kernel) -> None:
    kernel.run("%%hvdrun -np 3\npass", timeout=120)
    assert kernel.run("%hvd barrier").text() == "ranks 0-2 met\n"
    failing = "def f():\n    held = bytearray(b'x') * 300_000_000\n    raise ValueError(len(held))\nf()"
    assert "ValueError: 300000000" in kernel.run(f"%%hvdrun --ranks 1\n{failing}", allow_error=True).error
    text = kernel.run("%hvd gc").text()
    assert text.splitlines()[0].split() == ["rank", "before", "after"]
    held = {
        int(rank): (before, after)
        for rank, before, after in re.findall(r"^(\d) +(\d+) MB +(\d+) MB", text, re.MULTILINE)
    }
    freed = {rank: int(before) - int(after) for rank, (before, after) in held.items()}
    assert set(freed) == {0, 1, 2}
    assert freed[1] > 290, text
    assert max(freed[0], freed[2]) < 100, text


def test_memory_freed_by_a_cell_is_used_again(kernel: Kernel) -> None:
    assert kernel.run(f"%%hvdrun -np 3\n{FAULTS}later < 100", timeout=120).shown == ["[0-2] True"]


@pytest.mark.nightly
def test_values_above_the_limit_are_refused_before_transfer(kernel: Kernel) -> None:
    kernel.run("import numpy, os; os.environ['HVD_MAX_MOVE'] = '4M'; big = numpy.zeros(1 << 19 | 1)")
    outcome = kernel.run("%%hvdrun -np 3 --scatter big\npass", timeout=120, allow_error=True)
    assert outcome.error.endswith(
        "scattering `big` 4 MiB would move more than 4 MiB: take a slice, or lift the limit by --force or HVD_MAX_MOVE"
    ), outcome.error
    assert kernel.run("%%hvdrun\n'big' in globals()").shown == ["[0-2] False"]
    assert kernel.run("%%hvdrun --scatter big --force\nlen(big)").shown == ["[0-2] 174763"]


@pytest.mark.nightly
def test_memory_lists_variables_and_unnamed_tensors(kernel: Kernel) -> None:
    ran = kernel.run(
        "%%hvdrun -np 3\nimport torch\nmodel = torch.nn.Linear(1000, 5000)\nmodel(torch.ones(1000)).sum().backward()\n"
        "big = torch.zeros(10_000_000 if rank == 1 else 1)\nhidden = [lambda held=torch.zeros(5_000_000): held]",
        timeout=120,
    )
    rows = {line.split()[0]: line.split() for line in kernel.run("%hvd memory").text().splitlines()}
    cell = ran.reply["execution_count"]
    assert rows["model"] == ["model", "Linear", "20", "MB", "20", "MB", "0-2", "cell", f"{cell}:2"]
    assert rows["big"] == ["big", "Tensor", "40", "MB", "1;", "least", "4", "B", "cell", f"{cell}:4"]
    assert rows["(tensors)"] == ["(tensors)", "100", "MB", "1;", "least", "60", "MB"]
    assert rows["(gradients)"] == ["(gradients)", "20", "MB", "0-2"]


@pytest.mark.nightly
def test_memory_lists_optimizer_tensors_and_shared_gradients(kernel: Kernel) -> None:
    kernel.run(
        "%%hvdrun -np 3\nimport torch\nmodel = torch.nn.Linear(1000, 5000, bias=False)\n"
        "opt = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())\n"
        "for _ in range(3):\n    opt.zero_grad()\n    model(torch.ones(1000)).sum().backward()\n    opt.step()",
        timeout=120,
    )
    kernel.run("%hvd gc")
    told = kernel.run("%hvd memory").text()
    rows = {line.partition(")")[0]: line.partition(")")[2].split() for line in told.splitlines()}
    assert rows["(optimizer state"] == ["40", "MB", "0-2"]
    assert rows["(shared buckets"] == ["20", "MB", "0-2"]
    assert rows["(gradients"] == ["20", "MB", "0-2"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("refused", "name"),
    [
        ("np.empty(1 << 55, np.uint8)", "MemoryError"),
        ("torch.empty(1 << 55, dtype=torch.uint8)", "RuntimeError"),
        ("bytearray(1 << 62)", "MemoryError"),
    ],
)
def test_out_of_memory_error_lists_the_largest_variables(kernel: Kernel, refused: str, name: str) -> None:
    made = "import numpy as np, torch\nbig = torch.zeros(5_000_000)\nother = np.zeros(10_000_000)"
    failed = kernel.run(f"%%hvdrun -np 3\n{made}\n{refused}", allow_error=True, timeout=120)
    assert failed.reply["ename"] == name
    cell = failed.reply["execution_count"]
    last = failed.error.splitlines()[-1]
    assert last.startswith("rank 0 holds "), failed.error
    assert last.endswith(f"; largest: other 80 MB (cell {cell}:3), big 20 MB (cell {cell}:2)")
    assert ": tensors " in last
