"""PBS's and Grid Engine's files of hosts."""

from __future__ import annotations

import pytest

from hvd_kernel.jobs import JobError, Resources, formats
from hvd_kernel.jobs.readers import pbs, sge

PBS_PRO = {
    "PBS_ENVIRONMENT": "PBS_BATCH",
    "PBS_JOBID": "123.pbs01",
    "PBS_JOBNAME": "train",
    "PBS_NODEFILE": "/var/spool/pbs/aux/123.pbs01",
    "NCPUS": "8",
}
TORQUE = PBS_PRO | {"PBS_NUM_NODES": "2", "PBS_NUM_PPN": "2", "PBS_GPUFILE": "/var/spool/torque/aux/123.pbs01gpu"}
NODES = "n1.cluster\nn1.cluster\nn2.cluster\nn2.cluster\n"
GPUS = "n1.cluster-gpu1\nn1.cluster-gpu0\nn2.cluster-gpu0\n"

SGE = {
    "JOB_ID": "77",
    "JOB_NAME": "train",
    "NSLOTS": "12",
    "PE": "mpi",
    "PE_HOSTFILE": "/spool/n1/active_jobs/77.1/pe_hostfile",
}
PE_HOSTFILE = "n1.cluster 8 all.q@n1.cluster UNDEFINED\nn2.cluster 3 all.q@n2.cluster <NULL>\nn2.cluster 1 gpu.q@n2.cluster 0,0:0,1\n"


def test_pbs_repeats_a_host_for_each_slot() -> None:
    assert pbs.in_allocation(PBS_PRO)
    spec = pbs.read(PBS_PRO, {PBS_PRO["PBS_NODEFILE"]: NODES}.get)
    assert (spec.kind, spec.name, spec.warnings) == ("pbs", "train", ())
    assert [(r.role, r.index, r.host, r.slots) for r in spec.replicas] == [
        ("host", 0, "n1.cluster", 2),
        ("host", 1, "n2.cluster", 2),
    ]
    assert [r.resources for r in spec.replicas] == [Resources(), Resources()]


def test_torque_lists_gpus() -> None:
    spec = pbs.read(TORQUE, {TORQUE["PBS_NODEFILE"]: NODES, TORQUE["PBS_GPUFILE"]: GPUS}.get)
    assert [(r.host, r.slots, r.resources.gpus) for r in spec.replicas] == [("n1.cluster", 2, 2), ("n2.cluster", 2, 1)]


def test_grid_engine_sums_a_hosts_queues() -> None:
    assert sge.in_allocation(SGE)
    spec = sge.read(SGE, {SGE["PE_HOSTFILE"]: PE_HOSTFILE}.get)
    assert (spec.kind, spec.name, spec.warnings) == ("sge", "train", ())
    assert [(r.role, r.index, r.host, r.slots) for r in spec.replicas] == [
        ("host", 0, "n1.cluster", 8),
        ("host", 1, "n2.cluster", 4),
    ]


def test_grid_engines_file_is_told_from_its_text() -> None:
    assert formats.read(PE_HOSTFILE, "pe_hostfile") == sge.read_text(PE_HOSTFILE, "pe_hostfile")
    assert not sge.matches("n1 slots=4\n", "hosts")
    assert not sge.matches("n1 4\n", "hosts")
    assert not sge.matches("\n", "hosts")


@pytest.mark.parametrize("env", [{}, {"PBS_NODEFILE": "/f"}, {"PBS_JOBID": "1"}, {"JOB_ID": "1", "NSLOTS": "1"}])
def test_without_a_file_they_do_not_speak(env: dict[str, str]) -> None:
    assert not pbs.in_allocation(env)
    assert not sge.in_allocation(env)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "PBS_NODEFILE='/var/spool/pbs/aux/123.pbs01' cannot be read: it is on the job's first host; run this there."),
        ("", "/var/spool/pbs/aux/123.pbs01:1:1: the hostfile names no host: write lines like `host slots=4`."),
        ("n1\n\x00\n", "/var/spool/pbs/aux/123.pbs01:2:1: '\\x00' is not a host: write host slots=4, host:4 or host."),
    ],
)  # fmt: skip
def test_pbs_files_that_cannot_be_used(text: str | None, said: str) -> None:
    with pytest.raises(JobError) as caught:
        pbs.read(PBS_PRO, lambda _: text)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "PE_HOSTFILE='/spool/n1/active_jobs/77.1/pe_hostfile' cannot be read: it is on the job's first host; run this there."),
        ("\n", "/spool/n1/active_jobs/77.1/pe_hostfile:1:1: the file names no host: Grid Engine writes lines `host slots queue processors`."),
        ("n1 8 all.q@n1 UNDEFINED\n n2 0 all.q@n2 UNDEFINED\n", "/spool/n1/active_jobs/77.1/pe_hostfile:2:2: 'n2 0 all.q@n2 UNDEFINED' is not `host slots queue processors`."),
    ],
)  # fmt: skip
def test_grid_engine_files_that_cannot_be_used(text: str | None, said: str) -> None:
    with pytest.raises(JobError) as caught:
        sge.read(SGE, lambda _: text)
    assert str(caught.value) == said
