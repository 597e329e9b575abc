"""LSF: hosts from its variables, from IBM's CSM, and jsrun's rank file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hvd_kernel.jobs import Bounds, JobError, JobSpec, Resources
from hvd_kernel.jobs.readers import lsf

PLAIN = {
    "LSB_JOBID": "4711",
    "LSB_JOBNAME": "train",
    "LSB_MCPU_HOSTS": "hostA 4 hostB 2 ",
    "LSB_HOSTS": "hostA hostA hostA hostA hostB hostB",
    "LSB_DJOB_HOSTFILE": "/home/u/.lsbatch/1700000000.4711.hostfile",
    "LSB_DJOB_NUMPROC": "6",
    "LS_SUBCWD": "/home/u",
}
SUMMIT = {
    "LSB_JOBID": "331",
    "LSB_JOBNAME": "train",
    "CSM_ALLOCATION_ID": "26\n",
    "LSB_MCPU_HOSTS": "batch2 1 h36n02 42 h36n01 42 ",
    "LSB_DJOB_HOSTFILE": "/hosts",
}
ALLOCATION = """\
---
allocation_id: 26
primary_job_id: 331
secondary_job_id: 0
ssd_file_system_name:
launch_node_name: batch2
isolated_cores: 1
user_name: u
state: running
job_submit_time: 2019-08-05 12:12:10
num_nodes: 2
compute_nodes:
 - h36n02
 - h36n01
...
"""
NODE = """\
---
Total_Records: 1
Record_1:
  node_name: h36n02
  machine_model: 8335-GTX
  state: IN_SERVICE
  discovered_cores: 44
  discovered_gpus: 6
  discovered_sockets: 2
...
"""
CORES = Resources(Bounds(42), gpus=6)


def no_file(path: str) -> None:
    raise AssertionError(path)


def slots(spec: JobSpec) -> list[tuple[str, int]]:
    assert (spec.kind, spec.name) == ("lsf", "train")
    return [(each.host, each.slots) for each in spec.replicas]


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in PLAIN.items() if name not in names}


def test_the_variables_of_plain_lsf() -> None:
    spec = lsf.read(PLAIN, no_file)
    assert slots(spec) == [("hostA", 4), ("hostB", 2)]
    assert spec.warnings == ()
    files = {PLAIN["LSB_DJOB_HOSTFILE"]: "hostB\nhostA\nhostA\nhostA\nhostA\nhostB\n"}
    assert slots(lsf.read(without("LSB_MCPU_HOSTS"), files.get)) == [("hostB", 2), ("hostA", 4)]
    assert slots(lsf.read(without("LSB_MCPU_HOSTS", "LSB_DJOB_HOSTFILE"), no_file)) == [("hostA", 4), ("hostB", 2)]


def test_the_launch_node_of_csm_is_left_out() -> None:
    spec = lsf.read(SUMMIT, no_file)
    assert slots(spec) == [("h36n02", 42), ("h36n01", 42)]
    assert spec.warnings == ("LSF counts cores, and the GPUs of a node are not known here: say -np",)
    assert slots(lsf.read(SUMMIT | {"LSB_MCPU_HOSTS": "h1 4 h2 4"}, no_file)) == [("h1", 4), ("h2", 4)]
    assert slots(lsf.read(SUMMIT | {"LSB_MCPU_HOSTS": "h1 1"}, no_file)) == [("h1", 1)]


def test_csm_knows_nodes_cores_and_gpus() -> None:
    spec = lsf.read(SUMMIT, no_file, lsf.Csm(ALLOCATION, NODE))
    assert slots(spec) == [("h36n01", 6), ("h36n02", 6)]
    assert [each.resources for each in spec.replicas] == [CORES, CORES]
    assert spec.warnings == ()
    bare = lsf.Csm(ALLOCATION, NODE.replace("gpus: 6", "gpus: 0"))
    assert slots(lsf.read(SUMMIT, no_file, bare)) == [("h36n01", 1), ("h36n02", 1)]


@pytest.mark.parametrize(
    ("answers", "wanted", "asked"),
    [
        ([ALLOCATION, NODE], lsf.Csm(ALLOCATION, NODE), ["/opt/ibm/csm/bin/csm_allocation_query -a 26", "/opt/ibm/csm/bin/csm_node_attributes_query -n h36n02"]),
        ([ALLOCATION, None], None, ["/opt/ibm/csm/bin/csm_allocation_query -a 26", "/opt/ibm/csm/bin/csm_node_attributes_query -n h36n02"]),
        ([None], None, ["/opt/ibm/csm/bin/csm_allocation_query -a 26"]),
    ],
)  # fmt: skip
def test_what_csm_is_asked(answers: list[str | None], wanted: object, asked: list[str]) -> None:
    said = iter(answers)
    questions: list[str] = []

    def ask(words: list[str]) -> str | None:
        questions.append(" ".join(words))
        return next(said)

    assert lsf.query(SUMMIT, ask) == wanted
    assert questions == asked
    assert lsf.query(PLAIN, ask) is None


@pytest.mark.parametrize(
    ("env", "speaks"),
    [(PLAIN, True), (SUMMIT, True), ({"LSB_JOBID": "1"}, False), ({"LSB_HOSTS": "a"}, False), ({}, False)],
)
def test_who_is_in_a_job(env: dict[str, str], speaks: bool) -> None:
    assert lsf.in_allocation(env) is speaks


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda: lsf.read(PLAIN | {"LSB_MCPU_HOSTS": "a 4 b"}, no_file), "LSB_MCPU_HOSTS='a 4 b' is not a list of hosts with their slots: h1 4 h2 4."),
        (lambda: lsf.read(PLAIN | {"LSB_MCPU_HOSTS": "a 0"}, no_file), "LSB_MCPU_HOSTS='a 0' is not a list of hosts with their slots: h1 4 h2 4."),
        (lambda: lsf.read(without("LSB_MCPU_HOSTS"), {}.get), "LSB_DJOB_HOSTFILE='/home/u/.lsbatch/1700000000.4711.hostfile' cannot be read: run this where LSF has started the job."),
        (lambda: lsf.read(without("LSB_MCPU_HOSTS"), lambda _: "a b\n"), "/home/u/.lsbatch/1700000000.4711.hostfile:1:3: 'b' is not understood: write host slots=4, host:4 or host."),
        (lambda: lsf.read({"LSB_JOBID": "7", "CSM_ALLOCATION_ID": "1"}, no_file), "LSF job 7: none of LSB_MCPU_HOSTS, LSB_DJOB_HOSTFILE, LSB_HOSTS is set: -H names the hosts."),
        (lambda: lsf.read(SUMMIT, no_file, lsf.Csm("error: no such allocation\n", NODE)), "csm_allocation_query:1:1: compute_nodes: is missing."),
        (lambda: lsf.read(SUMMIT, no_file, lsf.Csm(ALLOCATION, NODE.replace(": 44", ": many"))), "csm_node_attributes_query:7:21: Record_1.discovered_cores: must be a whole number, not text."),
    ],
)  # fmt: skip
def test_what_is_wrong(read: Callable[[], JobSpec], said: str) -> None:
    with pytest.raises(JobError) as caught:
        read()
    assert str(caught.value) == said
