"""%%hvdrun --no-raise-error, as in an unattended notebook; and the report of a dead rank."""

from __future__ import annotations

import re

import pytest
from hvdtest.cluster import hurry, until
from hvdtest.kernel import Kernel, Outcome, tagged

pytestmark = [
    pytest.mark.jupyter,
    pytest.mark.mp,
    pytest.mark.timeout(400),
    # On a busy machine ranks may take long to obey when their time is over.
    pytest.mark.cluster(
        2, setup=("%%hvdrun\nimport os, time, torch\nkept = rank + 40",), figures={"cell_view_GRACE_S": 60.0}
    ),
]

FAILS = "print('begun')\nif rank: raise ValueError('a bad shard')\nhvd.allreduce(torch.ones(1))"
RIGHT = "%%hvdrun\nint(hvd.allreduce(torch.tensor([rank + 1]), op=hvd.Sum))"


def complaint(outcome: Outcome) -> list[str]:
    return re.sub(r"\x1b\[[\d;]*m", "", outcome.text("stderr")).splitlines()


def test_traceback_is_shown_in_full_and_the_cell_succeeds(kernel: Kernel) -> None:
    raised = kernel.run(f"%%hvdrun\n{FAILS}", allow_error=True)
    shown = kernel.run(f"%%hvdrun --no-raise-error\n{FAILS}")
    assert shown.reply["status"] == "ok"
    assert [output["type"] for output in shown.stored] == ["stream", "stream"]
    assert shown.text() == "[0-1] begun\n"
    number = re.compile(r"In\[\d+\]")  # the two cells' own
    assert number.sub("", "\n".join(complaint(shown))) == number.sub("", raised.error)
    assert complaint(shown)[0] == "ValueError on rank 1"
    assert complaint(shown)[-1] == "[0] released, because rank 1 failed"
    assert kernel.run(RIGHT).shown == ["[0-1] 3"]
    assert kernel.run("%%hvdrun\nkept").shown == ["[0] 40\n[1] 41"]


def test_result_names_hold_the_error_not_older_values(kernel: Kernel) -> None:
    kernel.run("%%hvdrun -o res --pull kept\n7")
    kernel.run(f"%%hvdrun --no-raise-error -o res --pull kept\n{FAILS}")
    assert kernel.run("type(res).__name__, isinstance(res, ValueError), str(res), res.rank, kept is res").shown == [
        "('ValueError', True, 'a bad shard', 1, True)"
    ]
    assert kernel.run("import sys; sys.last_value is res").shown == ["True"], "where %hvddebug looks for the rank"
    kernel.run("%%hvdrun --no-raise-error -o res --pull kept\n7")
    assert kernel.run("res[1], kept[1]").shown == ["(7, 41)"], "a cell that does not fail is like any other"


def test_a_time_limit_is_shown_too(kernel: Kernel) -> None:
    outcome = kernel.run("%%hvdrun --no-raise-error --timeout 0.3\ntime.sleep(600)")
    assert complaint(outcome)[0] == "HvdTimeout: the cell took longer than 0.3 s and was interrupted"
    assert kernel.run(RIGHT).shown == ["[0-1] 3"]


def test_the_interrupt_key_still_fails_the_cell(kernel: Kernel) -> None:
    started = kernel.start("%%hvdrun --no-raise-error\nif rank: input('inside')\ntime.sleep(600)", prompts=True)
    assert kernel.client.get_stdin_msg(timeout=60)["content"]["prompt"] == "[1] inside"
    kernel.press()
    assert kernel.finish_rest(started, allow_error=True).reply["ename"] == "KeyboardInterrupt"
    assert kernel.run(RIGHT).shown == ["[0-1] 3"]


def test_wrong_arguments_still_fail_the_cell(kernel: Kernel) -> None:
    assert "has ranks 0-1" in kernel.run("%%hvdrun --no-raise-error --ranks 7\n1", allow_error=True).error


def test_wait_for_a_failed_job_shows_its_error(kernel: Kernel) -> None:
    kernel.run("res = 'older'")
    kernel.run(f"%%hvdrun --bg shards --no-raise-error -o res\n{FAILS}")
    waited = kernel.run("%hvdjobs --wait")
    assert complaint(waited)[0] == "ValueError on rank 1"
    assert complaint(waited)[-1] == "[0] released, because rank 1 failed"
    rows = kernel.run("%hvdjobs").text().splitlines()
    assert [row.split(maxsplit=2)[2] for row in rows if row.startswith("shards ")] == ["failed: ValueError on rank 1"]
    assert kernel.run("str(res)").shown == ["'a bad shard'"]
    kernel.run("%%hvdrun --bg slow --no-raise-error\ntime.sleep(600)")
    late = kernel.run("%hvdjobs --wait slow --timeout 0.2", allow_error=True)
    assert late.reply["ename"] == "HvdTimeout", "the wait has failed, not the job"
    kernel.run("%hvdcancel slow")
    cancelled = kernel.run("%hvdjobs --wait slow", allow_error=True)
    assert cancelled.reply["ename"] == "KeyboardInterrupt"


def status(kernel: Kernel, *, prompts: bool = False) -> list[str]:
    return kernel.run("%hvd status", prompts=prompts).text().splitlines()


@pytest.mark.nightly
def test_a1_status_shows_why_a_rank_died(kernel: Kernel) -> None:
    died = kernel.run("%%hvdrun --no-raise-error\nif rank: os._exit(3)\nhvd.allreduce(torch.ones(1))")
    assert complaint(died)[0] == "RankDied on rank 1"
    header, alive, dead = status(kernel)
    assert (header.split()[-1], alive.split()[:2], dead.split()[:2]) == ("why", ["0", "alive"], ["1", "dead"])
    assert dead.endswith("  it exited with os._exit(3) in a cell, line 1")
    refused = kernel.run("%hvdpull kept", allow_error=True)
    assert refused.error == "ClusterError: nothing was pulled: rank 1 is dead; --ranks 0 pulls from the others"
    assert kernel.run("%hvdpull kept --ranks 0\nkept").shown == ["40"]
    kernel.run("%hvd respawn", timeout=120)
    assert status(kernel)[0].split() == ["rank", "state", "pid", "host", "device"]


@pytest.mark.nightly
@pytest.mark.cluster(2, env={"HVD_SPARES": "1"})
def test_status_shows_users_the_number_of_warm_spares(kernel: Kernel) -> None:
    assert len(status(kernel)) == 3, "what differs from run to run is for a person"

    def is_told() -> bool:
        """Accept a further line on the ranks of other notebooks, which concurrent tests may have."""
        return status(kernel, prompts=True)[3] == "1 spare process ready"

    until(lambda: is_told() or hurry_spares(kernel), "the line on a warm spare", patience=240)


def hurry_spares(kernel: Kernel) -> None:
    """It gets ready in time that no other process wants, of which a busy machine has none."""
    for pid, command in tagged(kernel.tag).items():
        if " spare " in command:
            hurry(pid)
