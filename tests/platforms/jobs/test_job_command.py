"""``hvdrun job``: files of platforms as a table, as a run on this machine, as another platform's file."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hvdtest.hvdrun import NIGHTLY, SUM, good, hvdrun, lines_of
from hvdtest.launch import clean_environment, free_port

from hvd_kernel.errors import ConfigError, UsageError
from hvd_kernel.launch.cli.job import NEEDS_FOLDER, main

pytestmark = pytest.mark.mp
DATA = Path(__file__).parents[1] / "data"
STEPS = """
train:
  framework: pytorch
  resources: {gpus: 0}
  tensorflow: {horovod: {workers: {count: 2, processes: 1}}}
  run:
    - "echo first $HOROVOD_RANK > said.$HOROVOD_RANK"
    - "cat said.0 said.1; exit $HOROVOD_RANK"
    - "echo never"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Return a folder with the programs of the fixtures: train.py and main.py, which sum over the ranks."""
    for name in ("train.py", "main.py"):
        (tmp_path / name).write_text(SUM)
    return tmp_path


def test_plan_as_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(DATA / "polyaxonfile.yml"), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"kind", "tasks", "steps", "warnings"} <= set(said)
    assert said["kind"] == "polyaxonfile"
    assert said["tasks"][3] == {
        "rank": 3,
        "role": "worker",
        "index": 2,
        "host": "",
        "cpu": {"request": 2, "limit": 4},
        "memory_bytes": {"request": 512 * 2**20, "limit": 2048 * 2**20},
        "gpus": 1,
        "command": "python train.py",
    }


def test_command_after_the_file_keeps_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["python", "-c", "print('a  b', \"$HOME\")"]
    assert main(["plan", str(DATA / "polyaxonfile-fragment.yml"), "--format", "json", "--", *line]) == 0
    (step,) = json.loads(capsys.readouterr().out)["steps"]
    assert shlex.split(step) == line


def test_every_rank_waits_for_all_after_each_step(mark: str, tmp_path: Path) -> None:
    file = tmp_path / "riseml.yml"
    file.write_text(STEPS)
    done = hvdrun("job", "run", str(file), cwd=tmp_path)
    assert done.returncode == 1, "of the step that failed"
    assert [lines_of(done.stdout, rank) for rank in range(2)] == [["first 0", "first 1"]] * 2
    assert "hvdrun: step 2 failed: the 1 after it do not run." in done.stderr.splitlines()
    assert "never" not in done.stdout


def test_command_after_a_file_replaces_the_missing_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The warning about a missing command was printed although there was one."""
    file = tmp_path / "line"
    file.write_text("mpirun -np 2 -bind-to none\n")
    assert main(["plan", str(file), "--format", "json", "--", "python", "train.py"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["steps"] == ["python train.py"]
    assert [each.partition(" is ignored")[0] for each in said["warnings"]] == ["-bind-to none"]


def test_a_polyaxonfile_runs_with_its_master_and_its_workers(mark: str, script: Path) -> None:
    done = hvdrun("job", "run", str(DATA / "polyaxonfile-fragment.yml"), "--", "python", "train.py", cwd=script)
    assert [lines_of(good(done), rank) for rank in range(4)] == [[f"{rank} 4 {rank} 4 1 10.0"] for rank in range(4)]
    bare = hvdrun("job", "run", str(DATA / "polyaxonfile-fragment.yml"), cwd=script)
    assert bare.returncode == 2
    assert "names no command" in bare.stderr


def test_gradient_line_runs_its_masters_mpirun(mark: str, script: Path) -> None:
    """The workers' ``sleep infinity`` ends with the master; the hostfile is made and removed, or another is named."""
    done = hvdrun("job", "run", "--gpus", "none", str(DATA / "gradient.sh"), cwd=script)
    assert [lines_of(good(done), rank) for rank in range(3)] == [[f"{rank} 3 {rank} 3 1 6.0"] for rank in range(3)]
    assert not Path("/generated").exists()


def test_status_of_the_master_is_the_jobs(mark: str, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("import os, sys; sys.exit(int(os.environ['HOROVOD_RANK']) + 6)")
    assert hvdrun("job", "run", "--gpus", "none", str(DATA / "gradient.sh"), cwd=tmp_path).returncode in {6, 7, 8}


@pytest.mark.parametrize("words", [["--"], pytest.param(["job", "run", "--"], marks=NIGHTLY)], ids=" ".join)
def test_mpirun_command_of_the_tutorials_runs_unchanged(mark: str, script: Path, words: list[str]) -> None:
    line = "mpirun -np 2 -bind-to none -map-by slot -x GREETING=hi -mca pml ob1 -mca btl ^openib python train.py"
    done = hvdrun(*words, *line.split(), cwd=script)
    assert [lines_of(good(done), rank) for rank in range(2)] == [[f"{rank} 2 {rank} 2 1 3.0"] for rank in range(2)]


@NIGHTLY
def test_parameters_of_an_mpirun_command_reach_mpiexec(mark: str, script: Path) -> None:
    line = "mpirun -np 2 -bind-to none -mca pml ob1 -mca btl ^openib -mca coll_base_verbose 7 python see.py"
    (script / "see.py").write_text(f"import os; print(os.environ['OMPI_MCA_coll_base_verbose']){SUM}")
    done = hvdrun("--mpi", "--", *line.split(), cwd=script)
    assert [lines_of(good(done), rank) for rank in range(2)] == [["7", f"{rank} 2 {rank} 2 1 3.0"] for rank in range(2)]
    assert "coll_base_verbose" not in done.stderr, "no word of being without effect"
    assert "coll_base_verbose" in hvdrun("--", *line.split(), cwd=script).stderr


def test_missing_framework_is_refused_naming_the_installed(mark: str) -> None:
    done = hvdrun("job", "run", "--gpus", "none", str(DATA / "riseml-processes.yml"))
    assert done.returncode == 2
    assert "the job wants tensorflow 1.5.0; no tensorflow is, but torch " in done.stderr


@pytest.mark.parametrize("kind", ["job", "mpijob", "trainjob", "swarm", "slurm", "lsf"])
def test_written_file_is_planned_again(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "written"
    words = ["--image", "python:3.11", "--name", "train", "-o", str(other)]
    job = ["write", str(DATA / "polyaxonfile-fragment.yml"), "--kind", kind, *words, "--", "python", "t.py"]
    assert main(job) == 0
    assert other.stat().st_mode & 0o777 == 0o600, "a secret may be in it"
    assert main(["plan", str(other), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["kind"], len(said["tasks"])) == (kind, 4)
    assert said["steps"] == ["python t.py"]


def test_base_is_written_as_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "deploy" / "base"
    words = ["write", str(DATA / "written-job.yml"), "--kind", "kustomize"]
    with pytest.raises(UsageError) as error:
        main(words)
    assert str(error.value) == NEEDS_FOLDER.format(kind="kustomize")
    assert main([*words, "-o", str(folder)]) == 0
    assert capsys.readouterr() == ("", "")
    files = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    names = ("kustomization", "secret", "service", "networkpolicy", "job")
    assert files == {f"{name}.yaml": 0o600 for name in names}
    assert main(["plan", str(folder / "job.yaml"), "--format", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["tasks"]) == 4
    with pytest.raises(ConfigError, match=f"^{folder / 'job.yaml'} cannot be written: File exists"):
        main([*words, "-o", str(folder / "job.yaml")])


def test_default_is_one_rank_per_gpu_else_one(mark: str) -> None:
    done = hvdrun(script=SUM)
    assert lines_of(good(done), 0) == ["0 1 0 1 1 1.0"]
    assert done.stderr == "hvdrun: 1 rank on this machine: it has no GPU\n"


POD = """
mount --bind {hosts} /etc/hosts
for pod in 1 0; do JOB_COMPLETION_INDEX=$pod {hvdrun} {python} -P -c "$SUM" & done
wait -n && wait -n
"""


@NIGHTLY
@pytest.mark.skipif(
    os.geteuid() != 0, reason="names of pods are faked by a mount of /etc/hosts, which only root can do"
)
def test_pods_of_an_indexed_job_start_ranks_that_connect(mark: str, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(Path("/etc/hosts").read_text() + "\n127.0.0.1 train-0.train\n")
    script = POD.format(hosts=hosts, hvdrun=f"{sys.executable} -P -m hvd_kernel.launch", python=sys.executable)
    pods = {"NAME": "train", "SERVICE": "train", "SIZE": "2", "SLOTS": "2", "PORT": str(free_port())}
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "bash", "-ec", script],
        env=clean_environment(**{f"HVD_JOB_{name}": value for name, value in pods.items()}, SUM=SUM)
        | {"HVD_SECRET_KEY": "0123456789abcdef" * 2},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert [lines_of(good(done), rank) for rank in range(4)] == [[f"{rank} 4 {rank} 4 1 10.0"] for rank in range(4)]
    assert "this is pod 1 of the Indexed Job train: 2 pods with 2 slots each" in done.stderr
