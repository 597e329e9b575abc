"""Every cell is answered on every rank, also if a rank cannot run it or cannot send its error."""

from __future__ import annotations

import re

import pytest
from hvdtest.cluster import execute

from hvd_kernel.cluster import Session
from hvd_kernel.errors import ClusterError
from hvd_kernel.protocol.messages import Failure

pytestmark = [pytest.mark.jupyter, pytest.mark.mp, pytest.mark.nightly, pytest.mark.cluster(2)]

SUM = "float(hvd.allreduce(torch.ones(1), op=hvd.Sum))"
FULL = OSError(28, "No space left on device")
BROKEN = """import torch
import {module} as broken
plain = broken.{name}

def fail(*args, **kwargs):
    broken.{name} = plain
    raise OSError(28, 'No space left on device')

if rank: broken.{name} = fail"""
"""A cell after which rank 1's next one cannot be begun, or not be ended, once."""


def failures(session: Session, code: str) -> dict[int, Failure]:
    """How a cell fails; the next one works."""
    found = execute(session, code).failures
    assert execute(session, SUM).run.values() == {0: 2.0, 1: 2.0}
    return found


@pytest.mark.parametrize(
    ("module", "name", "said", "heard"),
    [
        ("hvd_kernel.core.metrics", "begin_cell", "rank 1 could not run the cell", f"OSError: {FULL}"),
        (
            "hvd_kernel.worker.shell.control",
            "to_content",
            "rank 1 has run the cell, but cannot report how it ended",
            "ZeroDivisionError: division by zero",
        ),
    ],
)
def test_rank_that_cannot_run_a_cell_or_reply_reports_why(
    session: Session, module: str, name: str, said: str, heard: str
) -> None:
    execute(session, BROKEN.format(module=module, name=name))
    found = failures(session, f"if rank: 1 / 0\n{SUM}")
    assert (found[1].ename, found[1].evalue, found[1].traceback[-1]) == ("OSError", str(FULL), said)
    assert (found[0].ename, found[0].evalue) == ("RankFailed", f"Rank 1 failed: {heard}")


@pytest.mark.parametrize(
    ("raised", "told", "heard"),
    [
        (
            "ValueError('half of a pair: \\ud83d')",
            ("ValueError", "half of a pair: \ufffd"),
            "Rank 1 failed: ValueError: half of a pair: \ufffd",
        ),
        (
            "type('Unreadable', (Exception,), {'__str__': lambda self: self.text})",
            ("Unreadable", "<exception str() failed>"),
            "Rank 1 failed: Unreadable: <exception str() failed>",
        ),
    ],
)
def test_an_error_whose_text_cannot_be_sent_ends_the_cell(
    session: Session, raised: str, told: tuple[str, str], heard: str
) -> None:
    found = failures(session, f"import torch\nif rank: raise {raised}\n{SUM}")
    assert {rank: (each.ename, each.evalue) for rank, each in found.items()} == {0: ("RankFailed", heard), 1: told}


def test_rank_without_free_descriptors_replies(own: Session) -> None:
    """Its first cell, so that nothing of ours is open that a later one would find."""
    outcome = execute(
        own,
        """import os, resource
held, limits = [], resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
while True: held.append(os.open(os.devnull, os.O_RDONLY))""",
    )
    assert {each.ename for each in outcome.failures.values()} == {"OSError"}
    assert execute(own, "for each in held: os.close(each)\nprint(rank)").text() == {0: "0\n", 1: "1\n"}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("({'it': object()}, [])", "ValueError: Can't clean for JSON"),
        ("({}, [object()])", "TypeError: Buffer objects must support the buffer protocol."),
    ],
)
@pytest.mark.parametrize("urgent", [False, True])
def test_request_with_an_unsendable_answer_ends_with_reason(
    session: Session, answer: str, error: str, urgent: bool
) -> None:
    execute(session, f"from hvd_kernel.worker.shell.handlers import TABLE\nTABLE['odd'] = lambda *_: {answer}")
    with pytest.raises(ClusterError, match=re.escape(error)):
        session.ask("odd", [1], timeout=10, urgent=urgent)
    assert execute(session, f"import torch\n{SUM}").run.values() == {0: 2.0, 1: 2.0}
