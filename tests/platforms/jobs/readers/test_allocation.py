"""Allocations: which scheduler's job this is, in one sentence, and what a plain machine is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hvdtest.slurm import Slurm, why_not

from hvd_kernel.jobs.readers.allocation import Allocation, detect

SLURM = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)"}
LSF = {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": "h1 4 h2 2"}
PBS = {"PBS_JOBID": "9.pbs", "PBS_NODEFILE": "/nodes"}
SGE = {"JOB_ID": "11", "PE_HOSTFILE": "/pe"}
LAUNCHER = {"K_MPI_JOB_ROLE": "launcher"}
PART = {"HVD_JOB_SIZE": "3", "HVD_JOB_SLOTS": "2", "HVD_JOB_PORT": "29400", "HVD_SECRET_KEY": "s"}
INDEXED = {"JOB_COMPLETION_INDEX": "1", "HVD_JOB_NAME": "train", "HVD_JOB_SERVICE": "pods"} | PART
SWARM = {"HVD_SWARM_SERVICE": "train", "HVD_SWARM_SLOT": "2"} | PART
FILES = {"/nodes": "a\n", "/pe": "a 1 q@a -\nb 1 q@b -\n", "/etc/mpi/hostfile": "w0 slots=8\nw1 slots=8\n"}
NAMES = {"tasks.train": ["10.0.0.2"]}
CSM = {
    "csm_allocation_query": "compute_nodes:\n - b\n - a\nisolated_cores: 1\n",
    "csm_node_attributes_query": "Record_1:\n  discovered_cores: 44\n  discovered_sockets: 2\n  discovered_gpus: 4\n",
}


def found(env: dict[str, str], ask: Callable[[list[str]], str | None] = lambda _: None) -> Allocation:
    allocation = detect(env, FILES.get, lambda name: NAMES.get(name, []), ask)
    assert allocation is not None
    return allocation


@pytest.mark.parametrize(
    ("env", "kind", "sentence", "via", "own"),
    [
        (SLURM, "slurm", "Slurm job 42 gives 2 hosts (n1, n2) with 4 slots each", "srun", None),
        (LSF, "lsf", "LSF job 7 gives 2 hosts with 6 slots (h1: 4, h2: 2)", "jsrun", None),
        (PBS, "pbs", "PBS job 9.pbs gives 1 host (a) with 1 slot", "", None),
        (SGE, "sge", "Grid Engine job 11 gives 2 hosts (a, b) with 1 slot each", "", None),
        (LAUNCHER, "mpijob", "the MPIJob's /etc/mpi/hostfile gives 2 hosts (w0, w1) with 8 slots each", "", None),
        (INDEXED, "job", "this is pod 1 of the Indexed Job train: 3 pods with 2 slots each; rendezvous at train-0.pods:29400", "", 1),
        (SWARM, "swarm", "this is task 2 of the service train: 3 tasks with 2 slots each; rendezvous at tasks.train:29400", "", 1),
    ],
)  # fmt: skip
def test_what_this_process_is_in(env: dict[str, str], kind: str, sentence: str, via: str, own: int | None) -> None:
    allocation = found(env)
    assert (allocation.spec.kind, allocation.sentence) == (kind, sentence)
    assert (allocation.via, allocation.own) == (via, own)


def test_the_first_of_the_table_wins() -> None:
    everything = SWARM | INDEXED | LAUNCHER | SGE | PBS | LSF | SLURM
    for env in (SLURM, LSF, PBS, SGE, LAUNCHER, INDEXED, SWARM):
        assert found(everything) == found(env)
        everything = {name: value for name, value in everything.items() if name not in env or name in PART}


@pytest.mark.parametrize(
    ("more", "gives"),
    [
        ({"SLURM_GPUS_ON_NODE": "2"}, "2 hosts (n1, n2) with 4 slots and 2 GPUs each"),
        ({"SLURM_GPUS_ON_NODE": "0"}, "2 hosts (n1, n2) with 4 slots each"),
        ({"SLURM_TASKS_PER_NODE": "4,1", "SLURM_GPUS_ON_NODE": "1"}, "2 hosts with 5 slots (n1: 4, n2: 1) and 1 GPU each"),
        ({"SLURM_JOB_NODELIST": "n1", "SLURM_TASKS_PER_NODE": "1", "SLURM_GPUS_ON_NODE": "1"}, "1 host (n1) with 1 slot and 1 GPU"),
        ({"SLURM_JOB_NODELIST": "n[01-64]", "SLURM_TASKS_PER_NODE": "4(x64)"}, "64 hosts (n01, n02, n03, ..., n64) with 4 slots each"),
    ],
)  # fmt: skip
def test_a_sentence_for_people(more: dict[str, str], gives: str) -> None:
    assert found(SLURM | more).sentence == f"Slurm job 42 gives {gives}"


def test_csm_is_asked_where_it_is() -> None:
    env = LSF | {"CSM_ALLOCATION_ID": "26"}
    allocation = found(env, lambda words: CSM[Path(words[0]).name])
    assert allocation.sentence == "LSF job 7 gives 2 hosts (a, b) with 4 slots and 4 GPUs each"
    assert found(env).sentence == "LSF job 7 gives 2 hosts with 6 slots (h1: 4, h2: 2)"


@pytest.mark.parametrize(
    "env", [{}, {"SLURM_JOB_ID": "42"}, {"K_MPI_JOB_ROLE": "worker"}, {"JOB_COMPLETION_INDEX": "0"}]
)
def test_a_plain_machine(env: dict[str, str]) -> None:
    assert detect(env, FILES.get, lambda _: []) is None


SAY = """
import os
from hvd_kernel.jobs.readers.allocation import detect
found = detect(os.environ, lambda _: None, lambda _: [])
print(found.sentence, *found.spec.warnings, sep="; ")
"""


@pytest.mark.nightly
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_environment_of_a_real_slurm(tmp_path: Path) -> None:
    """What data/slurm holds is still what Slurm says."""
    python = [sys.executable, "-P", "-c", SAY]
    with Slurm(tmp_path) as slurm:
        env = {**os.environ, **slurm.variables}
        said = [
            subprocess.run(words, env=env, capture_output=True, text=True, timeout=120, check=True).stdout.strip()
            for words in (
                ["salloc", "--quiet", "-N2", "-n3", "--mem=100", *python],
                ["srun", "-N1", "-n1", "--mem=100", *python],
            )
        ]
    unknown = (
        "; Slurm does not say here how many GPUs each node has: in a step it would (srun --overlap -N1 -n1 -w NODE env)"
    )
    assert said == [
        f"Slurm job 1 gives 2 hosts with 3 slots (n1: 2, n2: 1){unknown}",
        "Slurm step 2.0 gives 1 host (n1) with 1 slot",
    ]
