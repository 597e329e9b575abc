"""``%%hvdrun --smoke``: rank 0 runs the cell first, as the only rank; the others run it only if that succeeds."""

from __future__ import annotations

import pytest
from hvdtest.kernel import Kernel

pytestmark = [pytest.mark.jupyter, pytest.mark.mp]

SUM = "import numpy as np, hvd_kernel.numpy as h\nseen = [*globals().get('seen', []), (hvd.size(), size)]\n"
SUM += "total = float(h.allreduce(np.ones(1), op=h.Sum, name='ones')[0])\nprint('in', rank)\nseen, total"


@pytest.mark.cluster(2)
def test_smoke_runs_rank_0_first_and_shows_output_once(kernel: Kernel) -> None:
    ran = kernel.run(f"%%hvdrun --smoke\n{SUM}")
    assert ran.text() == "[0] in 0\n[1] in 1\n"
    assert ran.text("stderr") == ""
    assert ran.shown == ["[0] ([(1, 1), (2, 2)], 2.0)\n[1] ([(2, 2)], 2.0)"]


@pytest.mark.nightly
@pytest.mark.cluster(3)
def test_smoke_failure_stops_other_ranks_next_cell_works(kernel: Kernel) -> None:
    kernel.run("%%hvdrun\nran = 0")
    failed = kernel.run("%%hvdrun --smoke\nran = 1\nprint('before it')\n1 / 0", allow_error=True)
    assert failed.reply["ename"] == "ZeroDivisionError"
    assert "ZeroDivisionError on rank 0\n" in failed.error
    assert failed.text() == "[0] before it\n"
    assert failed.text("stderr") == "the cell has failed on rank 0 alone, the other ranks have not run it\n"
    assert kernel.run(f"%%hvdrun\n{SUM}\nran, size, total").shown == ["[0] (1, 3, 3.0)\n[1-2] (0, 3, 3.0)"]
    shown = kernel.run("%%hvdrun --smoke --no-raise-error -o result\n1 / 0")
    assert shown.text("stderr").endswith("division by zero\n")
    assert kernel.run("print(type(result).__name__)").text() == "ZeroDivisionError\n"


@pytest.mark.nightly
@pytest.mark.cluster(3)
def test_state_changed_by_rank_0_alone_is_named(kernel: Kernel) -> None:
    kernel.run("%%hvdrun\nsteps, other, fixed = [0], 1, 'f'")
    told = kernel.run("%%hvdrun --smoke\nsteps[0] += 1\nfresh = 1\nsteps")
    assert told.text("stderr") == (
        "steps was changed on rank 0 alone, and will be once more: rank 0 may differ from the others (%hvd check steps)\n"
    )
    assert told.shown == ["[0] [2]\n[1-2] [1]"]


@pytest.mark.nightly
@pytest.mark.cluster(3)
def test_smoke_is_refused_if_rank_0_cannot_run_alone(kernel: Kernel) -> None:
    for line, said in (
        ("--smoke --ranks 1,2", "--smoke runs the cell on rank 0 first, which is not among --ranks"),
        ("--smoke --bg", "--smoke waits for rank 0: leave out --smoke or --bg"),
    ):
        assert said in kernel.run(f"%%hvdrun {line}\nran = 'wrong'", allow_error=True).error
    kernel.run(
        "%%hvdrun\nran = 2\nhvd.shutdown()\nhvd.init(process_sets='dynamic')\npair = hvd.add_process_set([0, 1])"
    )
    refused = kernel.run("%%hvdrun --smoke\nran = 'wrong'", allow_error=True).error
    assert "--smoke is for cells without process sets, and there are process sets, of ranks [0, 1]" in refused
    assert kernel.run("%%hvdrun\nhvd.remove_process_set(pair)\nran").shown == ["[0-2] 2"]
