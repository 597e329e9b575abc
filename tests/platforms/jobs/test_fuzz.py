"""Fuzzer of the job readers: any text and any environment end in a job or in a JobError, in no other exception."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hvd_kernel.jobs import JobError, JobSpec, formats
from hvd_kernel.jobs.plan import as_json, as_text, plan
from hvd_kernel.jobs.readers.allocation import Allocation, detect

DATA = Path(__file__).parents[1] / "data"
TEXTS = [path.read_text() for path in sorted(DATA.iterdir()) if path.is_file()] + ["a slots=2\nb:3 user=joe\n[::1]\n"]
SLURMS = [
    dict(line.split("=", 1) for line in path.read_text().splitlines() if not line.startswith("#"))
    for path in sorted((DATA / "slurm").iterdir())
]
VARIABLES = sorted(
    {name for env in SLURMS for name in env}
    | {
        "LSB_JOBID",
        "LSB_MCPU_HOSTS",
        "LSB_HOSTS",
        "LSB_DJOB_HOSTFILE",
        "CSM_ALLOCATION_ID",
        "PBS_JOBID",
        "PBS_NODEFILE",
    }
    | {"PBS_GPUFILE", "PE_HOSTFILE", "K_MPI_JOB_ROLE", "I_MPI_PERHOST", "JOB_COMPLETION_INDEX", "HVD_SWARM_SERVICE"}
    | {"HVD_JOB_NAME", "HVD_JOB_SERVICE", "HVD_JOB_SIZE", "HVD_JOB_SLOTS", "HVD_JOB_PORT", "HVD_SWARM_SLOT"}
)
LIKELY = ["1", "2", "0", "n1", "n[1-2]", "4(x2)", "a 4 b 2", "launcher", "4294967290", "70000", "a100:2"]

TRIES = settings(
    max_examples=500 if os.environ.get("HVDTEST_TIER") == "all" else 25,
    deadline=None,
    derandomize=os.environ.get("HVDTEST_TIER") != "all",
    database=None,
    suppress_health_check=list(HealthCheck),
)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Return a text that somebody could have, with a part of it taken out, doubled or written over."""
    text = draw(st.sampled_from(TEXTS))
    start = draw(st.integers(0, len(text)))
    end = draw(st.integers(start, min(len(text), start + 40)))
    put = draw(
        st.sampled_from(["", text[start:end] * 2, ":", "\n", "  ", "[", "'", "-1", "1e999", "null", "&a", "\\", "\0"])
    )
    return text[:start] + put + text[end:]


@TRIES
@given(st.text(max_size=200) | damaged(), st.sampled_from([reader.kind for reader in formats.READERS] + [""]))
def test_any_text(text: str, kind: str) -> None:
    with suppress(JobError):
        job = formats.read(text, "file", kind, lambda _: None)
        assert isinstance(job, JobSpec)
        as_text(plan(job))
        as_json(plan(job))


@TRIES
@given(
    st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(LIKELY) | st.text(max_size=20), max_size=20),
    st.none() | st.text(max_size=40) | st.just("a 4 q@a -\n"),
    st.lists(st.just("10.0.0.1")),
)
def test_any_environment(env: dict[str, str], text: str | None, addresses: list[str]) -> None:
    with suppress(JobError):
        found = detect(env, lambda _: text, lambda _: addresses, lambda _: text)
        assert found is None or isinstance(found, Allocation)


@TRIES
@given(st.data())
def test_slurms_environments_with_other_values(data: st.DataObject) -> None:
    env = data.draw(st.sampled_from(SLURMS))
    changed = st.dictionaries(st.sampled_from(sorted(env)), st.sampled_from(LIKELY) | st.text(max_size=20), max_size=3)
    with suppress(JobError):
        detect(env | data.draw(changed), lambda _: None, lambda _: [])
