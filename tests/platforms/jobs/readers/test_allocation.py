"""Allocations: every environment gives one, none or a JobError; that of a real Slurm (others: data/readers)."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hvdtest.slurm import Slurm, why_not
from hypothesis import given
from hypothesis import strategies as st

from hvd_kernel.jobs import JobError
from hvd_kernel.jobs.readers import slurm
from hvd_kernel.jobs.readers.allocation import Allocation, detect
from hvd_kernel.launch.agents import agent_command

DATA = Path(__file__).parents[2] / "data"
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


@given(
    st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(LIKELY) | st.text(max_size=20), max_size=20),
    st.none() | st.text(max_size=40) | st.just("a 4 q@a -\n"),
    st.lists(st.just("10.0.0.1")),
)
def test_any_environment(env: dict[str, str], text: str | None, addresses: list[str]) -> None:
    with suppress(JobError):
        found = detect(env, lambda _: text, lambda _: addresses, lambda _: text)
        assert found is None or isinstance(found, Allocation)


@given(st.data())
def test_slurms_environments_with_other_values(data: st.DataObject) -> None:
    env = data.draw(st.sampled_from(SLURMS))
    changed = st.dictionaries(st.sampled_from(sorted(env)), st.sampled_from(LIKELY) | st.text(max_size=20), max_size=3)
    with suppress(JobError):
        detect(env | data.draw(changed), lambda _: None, lambda _: [])


COMPONENTS = {"n1": "--het-group=0", "n2": "--het-group=1", "n3": "--het-group=1"}


@pytest.mark.parametrize(
    ("file", "options"),
    [("het-batch", COMPONENTS), ("het-salloc", COMPONENTS), ("batch", {}), ("step", {})],
)
def test_srun_selects_the_component_of_each_host(file: str, options: dict[str, str]) -> None:
    """The variables are those of a real Slurm 22.05."""
    lines = (DATA / "slurm" / f"{file}.env").read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert slurm.step_options(env) == options
    older = {name.replace("_HET_", "_PACK_"): value for name, value in env.items()}
    assert slurm.step_options(older) == {host: option.replace("het", "pack") for host, option in options.items()}
    assert slurm.step_options(env | {"SLURM_STEP_ID": "0"}) == {}, "srun knows the component of its step"


def test_host_of_two_components_starts_in_the_first() -> None:
    nodes = {f"SLURM_JOB_NODELIST_HET_GROUP_{number}": names for number, names in enumerate(("a", "b,a", "c"))}
    options = {"a": "--het-group=0", "b": "--het-group=1", "c": "--het-group=2"}
    assert slurm.step_options({"SLURM_HET_SIZE": "3"} | nodes) == options
    command = agent_command("b", local=False, port=None, identity=None, via="srun", option=options["b"])
    assert command[:2] == ["srun", "--het-group=1"]
    assert command[command.index("-w") + 1] == "b"


SENTENCE = """
import os
from hvd_kernel.jobs.readers.allocation import detect
found = detect(os.environ, lambda _: None, lambda _: [])
print(found.sentence, *found.spec.warnings, sep="; ")
"""


@pytest.mark.nightly
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_environment_of_a_real_slurm(tmp_path: Path) -> None:
    """Slurm still sets the variables of data/slurm."""
    python = [sys.executable, "-P", "-c", SENTENCE]
    with Slurm(tmp_path) as running:
        env = {**os.environ, **running.variables}
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
