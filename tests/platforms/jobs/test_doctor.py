"""``hvdrun doctor``: what is found in a Horovod project's files, line by line, and what it says to write."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hvd_kernel.launch.cli import main
from hvd_kernel.launch.doctor import command, project, python_code
from hvd_kernel.launch.doctor.finding import MIN_PYTHON, MIN_TORCH, Finding, Verdict

DATA = Path(__file__).parents[1] / "data"
RUNS, NOTE, LINE, NOT = Verdict.RUNS, Verdict.NOTE, Verdict.LINE, Verdict.NOT
HVD = "import horovod.torch as hvd\n"
TORCH = (1, "import horovod.torch", RUNS)


def found(name: str, text: str) -> list[Finding]:
    return project.findings([(name, text)])


def seen(name: str, text: str) -> list[tuple[int, str, Verdict]]:
    return [(each.line, each.subject, each.verdict) for each in found(name, text)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (HVD, [(1, "import horovod.torch", RUNS)]),
        ("from horovod import torch as hvd\nhvd.size()", [(1, "import horovod.torch", RUNS)]),
        ("import horovod.torch\nhorovod.torch.nothing()", [TORCH, (2, "horovod.torch.nothing", NOT)]),
        (HVD + "hvd.init(), hvd.Compression.fp16, hvd.elastic.run, hvd.mpi_ops.poll, hvd.SyncBatchNorm", [TORCH]),
        (HVD + "\nhvd.frobnicate()", [TORCH, (3, "horovod.torch.frobnicate", NOT)]),
        (
            "from horovod.torch.mpi_ops import poll, nothing",
            [(1, "import horovod.torch.mpi_ops", RUNS), (1, "horovod.torch.mpi_ops.nothing", NOT)],
        ),
        ("from horovod.torch.mpi_ops import _basics", [(1, "import horovod.torch.mpi_ops", RUNS)]),
        (
            "from horovod.runner.gloo_run import launch_gloo",
            [
                (1, "import horovod.runner.gloo_run", RUNS),
                (1, "horovod.runner.gloo_run.launch_gloo", NOTE),
            ],
        ),
        ("import horovod.tensorflow as hvd\nhvd.init()", [(1, "import horovod.tensorflow", RUNS)]),
        ("import horovod.tensorflow.keras", [(1, "import horovod.tensorflow.keras", RUNS)]),
        ("from horovod import spark", [(1, "import horovod.spark", RUNS)]),
        ("from horovod.ray import RayExecutor", [(1, "import horovod.ray", RUNS)]),
        (
            "try:\n    import horovod.ray.nothing\nexcept ImportError:\n    pass",
            [(2, "import horovod.ray.nothing", NOTE)],
        ),
        ("import horovod.mxnet as hvd\nhvd.init()", [(1, "import horovod.mxnet", RUNS)]),
        ("import horovod.nothing", [(1, "import horovod.nothing", NOT)]),
        ("from .horovod import x\nimport horovodish", []),
        ("Trainer(strategy='horovod')", [(1, 'strategy="horovod"', LINE)]),
        ("import os\nos.environ['HOROVOD_CYCLE_TIME'] = 'fast'", [(2, "HOROVOD_CYCLE_TIME=fast", LINE)]),
        ("e = {'HOROVOD_AUTOTUNE': '1'}", [(1, "HOROVOD_AUTOTUNE=1", RUNS)]),
        ("os.environ.setdefault('HOROVOD_CCL_CACHE', '1')", [(1, "HOROVOD_CCL_CACHE=1", NOTE)]),
        ("os.environ['HOROVOD_LOCAL_RANK']", [(1, "HOROVOD_LOCAL_RANK", RUNS)]),
        ("print 'horovod'", [(1, "Python", NOTE)]),
        ("print 'nothing'", []),
    ],
)
def test_python(text: str, wanted: list[tuple[int, str, Verdict]]) -> None:
    assert seen("a.py", text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("# comment\nset -e\n./prepare data\n", []),
        (
            "mpirun -np $NP \\\n  -bind-to none -mca btl ^openib \\\n  python a.py | tee log\n",
            [
                (1, "mpirun -np $NP -bind-to none -mca btl ^openib python a.py", LINE),
                (1, "-bind-to none", NOTE),
                (1, "-mca btl '^openib'", NOTE),
            ],
        ),
        ("cd x && mpirun -rf ranks python a.py", [(1, "mpirun -rf ranks python a.py", NOT)]),
        ("if t; then mpirun -H $H -np 9 python a.py; fi", [(1, "mpirun -H $H -np 9 python a.py", LINE)]),
        (
            "horovodrun -np 4 -p 1234 --log-level $L python a.py",
            [(1, "horovodrun -np 4 -p 1234 --log-level $L python a.py", LINE)],
        ),
        ("horovodrun -np $N --min-np 2 python a.py", [(1, "horovodrun -np $N --min-np 2 python a.py", LINE)]),
        (
            "horovodrun --config-file missing.yml python a.py 2>&1",
            [(1, "horovodrun --config-file missing.yml python a.py", LINE)],
        ),
        ("hvdrun -np 4 python a.py", [(1, "hvdrun -np 4 python a.py", RUNS)]),
        ("python -m horovod.runner.launch -np 2 python a.py", [(1, "horovodrun -np 2 python a.py", LINE)]),
        (
            "docker run --gpus all image bash -c 'horovodrun -np 4 python a.py'",
            [(1, "horovodrun -np 4 python a.py", LINE)],
        ),
        ("sh -c 'mpirun -np 2 python a.py'", [(1, "mpirun -np 2 python a.py", LINE)]),
        ("srun -n 4 python a.py", [(1, "srun -n 4 python a.py", LINE)]),
        ("export HOROVOD_HIERARCHICAL_ALLREDUCE=1 A=2", [(1, "HOROVOD_HIERARCHICAL_ALLREDUCE=1", RUNS)]),
        ("HOROVOD_LOG_LEVEL=$LEVEL ./a", [(1, "HOROVOD_LOG_LEVEL=$LEVEL", RUNS)]),
        (
            "mpirun -np 2 -x HOROVOD_FUSION_TRESHOLD=1 ./a",
            [(1, "mpirun -np 2 -x HOROVOD_FUSION_TRESHOLD=1 ./a", LINE), (1, "HOROVOD_FUSION_TRESHOLD=1", NOTE)],
        ),
        (
            "HOROVOD_GPU_OPERATIONS=NCCL pip install --no-cache-dir 'horovod[pytorch]==0.28.1' torch==2.5.1+cu121",
            [(1, "HOROVOD_GPU_OPERATIONS=NCCL", RUNS), (1, "horovod[pytorch]==0.28.1", LINE)],
        ),
        ("pip install horovod.txt pytorch-lightning horovod-like", []),
        ("echo 'a quote that is not closed; mpirun", []),
    ],
)
def test_shell(text: str, wanted: list[tuple[int, str, Verdict]]) -> None:
    assert seen("a.sh", text) == wanted


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        (
            "Dockerfile.gpu",
            (
                'FROM horovod/horovod:0.28.1 AS a\nENV HOROVOD_WITH_MPI=1 A="b c"\nENV HOROVOD_LOG_LEVEL LOUD\n'
                "RUN --mount=type=cache \\\n  pip install torch==1.13.1 && \\\n  horovodrun --check-build\n"
                'CMD ["mpirun", "-np", "4", "python", "a b.py"]\n'
            ),
            [
                (1, "FROM horovod/horovod:0.28.1", LINE),
                (2, "HOROVOD_WITH_MPI=1", NOTE),
                (3, "HOROVOD_LOG_LEVEL=LOUD", LINE),
                (4, "torch==1.13.1", LINE),
                (4, "horovodrun --check-build", LINE),
                (7, "mpirun -np 4 python a b.py", LINE),
            ],
        ),
        ("Dockerfile", "FROM python:3.8\n", [(1, "python==3.8", LINE)]),
        ("Dockerfile", "FROM python:3.12-slim\n", []),
        (
            "requirements-gpu.txt",
            "torch>=1.8\n# horovod\nhorovod[pytorch] >=0.20, <0.28\n",
            [(3, "horovod[pytorch] >=0.20, <0.28", LINE)],
        ),
        (
            "environment.yml",
            "dependencies:\n  - python=3.10\n  - pytorch=1.12=py3\n",
            [(2, "python=3.10", LINE), (3, "pytorch=1.12=py3", LINE)],
        ),
        ("environment.yml", "dependencies:\n  - python>=3.8\n  - pytorch=2.5\n", []),
        (
            "pyproject.toml",
            'dependencies = ["horovod>=0.28", "torch<2.4", "torch<3"]\n',
            [(1, "horovod>=0.28", LINE), (1, "torch<2.4", LINE)],
        ),
        ("pyproject.toml", '[tool.poetry.dependencies]\nhorovod = {version = "^0.28"}\n', [(2, "horovod", LINE)]),
        ("polyaxonfile.yml", (DATA / "polyaxonfile.yml").read_text(), [(1, "polyaxonfile, 8 ranks", RUNS)]),
        ("compose.yml", "a: 1\n", []),
    ],
)
def test_other_files(name: str, text: str, wanted: list[tuple[int, str, Verdict]]) -> None:
    assert seen(name, text) == wanted


def test_what_is_said_names_the_line_to_write() -> None:
    text = "mpirun -np 2 python a.py\nhorovodrun -np 2 python a.py\nsrun python a.py\npip install horovod==0.27\n"
    assert [(each.detail, each.remedy) for each in found("a.sh", text)] == [
        (
            "hvdrun reads it unchanged",
            "put `hvdrun --` in front of it, or use `hvdrun --install-mpirun DIR` and put DIR first in PATH",
        ),
        ("hvdrun has its flags", "`hvdrun --install-horovodrun` once, or write hvdrun in its place"),
        ("`import horovod` is not known there", "`hvdrun --install-horovod` once"),
        (
            "that wheel is 0.28.1: relax the requirement",
            "use hvd_kernel; for packages that require horovod by name, the wheel of `hvdrun --build-horovod-shim DIR`",
        ),
    ]


def test_what_is_installed_already_runs() -> None:
    text = "mpirun -np 2 python a.py\nhorovodrun -np 2 python a.py\nsrun python a.py\npip install horovod\n"
    ready = {"mpirun", "horovodrun", "import", "horovod"}
    assert {each.verdict for each in project.findings([("a.sh", text)], ready)} == {RUNS}


def test_a_project_without_horovod_has_no_findings() -> None:
    lines = ("a.sh", "mpirun -np 2 python a.py\nsrun python a.py\n")
    assert project.findings([lines, ("a.py", "import mpi4py\n")]) == []
    assert len(project.findings([lines, ("a.py", HVD)])) == 3


@pytest.mark.nightly
def test_names_of_horovod_torch_are_known_without_torch() -> None:
    import hvd_kernel.torch

    missing = [name for name in hvd_kernel.torch.__all__ if not python_code.module_has("horovod.torch", name)]
    assert missing == []
    assert not python_code.module_has("horovod.torch", "nothing")


def test_the_oldest_versions_are_those_of_the_package() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'requires-python = ">={MIN_PYTHON}"' in text
    assert f'"torch>={MIN_TORCH},' in text


def test_the_report_and_its_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for name in [name for name in os.environ if name.startswith("HOROVOD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(HVD)
    Path("venv").mkdir()
    Path("venv/pyvenv.cfg").touch()
    Path("venv/b.py").write_text("import horovod.spark\n")
    assert main.main(["doctor", "train.py"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 file read: all of it runs as it is"
    Path("run.sh").write_text("horovodrun -np 2 python train.py\n")
    assert main.main(["doctor", "."]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "LINE  run.sh:1    horovodrun -np 2 python train.py: hvdrun has its flags",
        "                  -> `hvdrun --install-horovodrun` once, or write hvdrun in its place",
        (
            "ok    train.py:1  import horovod.torch: in ranks of hvdrun and in cells; elsewhere after "
            "`hvdrun --install-horovod`"
        ),
        "2 files read: 1 run as they are, 1 needs a line",
    ]
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "soon")
    assert main.main(["doctor", "train.py", "--format", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["runs"], said["files"]) == (False, ["train.py", "run.sh"])
    assert said["findings"][-1] == {
        "file": "environment",
        "line": 0,
        "what": "HOROVOD_CYCLE_TIME=soon",
        "verdict": "line",
        "said": "init() refuses this value",
        "remedy": "write a number from 0 to 60000",
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "hvdrun doctor: there is no nothing: name a script, or a project's folder\n"),
        (["empty"], "hvdrun doctor: empty has no Python file, notebook, script, Dockerfile or list of packages\n"),
        ([], "hvdrun doctor: the following arguments are required: train.py|DIR. Write hvdrun doctor train.py"),
    ],
)
def test_wrong_use(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main.main(["doctor", *words]) == 2
    assert capsys.readouterr().err.startswith(said)


FILES = ["setup.py", "a.sh", "requirements.txt", "environment.yml", "pyproject.toml", "Dockerfile", "job.yml"]
TOKENS = st.sampled_from(
    [
        *("import horovod.torch as hvd\n", "from horovod ", "import ", "hvd.", "try:\n ", "except:\n ", "(", ")", "*"),
        *("mpirun ", "horovodrun ", "hvdrun ", "-np ", "-H ", "a:2 ", "-x ", "--help ", "-mca ", "--mpi-args ", "$N "),
        *("--config-file ", "--hostfile ", "/dev/zero ", "--build-horovod-shim ", "--install-horovod ", "python a.py "),
        *("sh -c '", "docker run ", "srun ", "HOROVOD_CYCLE_TIME=", "HOROVOD_", "1 ", "pip install ", "horovod[torch]"),
        *("torch", "python", "=", "==", ">=", "<", "~=", "^", "1.2", ".*", "+cu", "FROM ", "RUN ", "ENV ", "CMD ["),
        *('"', "'", "\\", "\\\n", "\n", " ", ";", "&&", "|", ">", "&", "`", "$(", "${", "}", "]", ",", "#", ":", "- "),
        *("\0", "\ufeff", "\udcff", "\u2028", "é", "\r", "\t"),
    ]
)
TEXTS = st.lists(TOKENS | st.text(max_size=5), max_size=25).map("".join)


@pytest.mark.parametrize("name", FILES)
@given(text=TEXTS)
@example(text="FROM horovod\n" * 50)
@example(text="(" * 3000)
@example(text="mpirun sh -c " * 300)
def test_any_text_ends_in_findings(name: str, text: str) -> None:
    listed = found(name, text)
    assert all(1 <= each.line <= len(text.splitlines()) and each.subject for each in listed)
    assert command.report_text(listed, 1).count("\n") > sum(bool(each.remedy) for each in listed)


def notebook(*cells: object, kind: str = "code") -> str:
    listed = [{"cell_type": kind, "source": each} for each in cells]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# Horovod\n"]}, *listed], "nbformat": 4})


def in_cells(text: str, name: str = "a.ipynb") -> list[tuple[int, int, str, Verdict]]:
    return [(each.cell, each.line, each.subject, each.verdict) for each in found(name, text)]


def test_a_notebook_is_read_by_its_cells() -> None:
    """A name that one cell imports is used in another; lines of IPython are no Python, and some are a shell's."""
    text = notebook(
        ["%matplotlib inline\n", "import horovod.torch as hvd\n"],
        "!pip install horovod==0.28.1\nhvd.frobnicate()\n",
        "%%bash\nset -e\nmpirun -np 2 \\\n  python a.py",
        "!horovodrun -np 4 \\\n   python a.py\nfiles = !ls\nhvd.size?\n?hvd",
        "%%hvdrun -np 2\nhvd.nothing()",
        "%%html\n<b>horovod</b>",
        "x = (\n",
        "%env HOROVOD_CYCLE_TIME=fast\n%time hvd.other()",
    )
    assert in_cells(text) == [
        (2, 2, "import horovod.torch", RUNS),
        (3, 1, "horovod==0.28.1", LINE),
        (3, 2, "horovod.torch.frobnicate", NOT),
        (4, 3, "mpirun -np 2 python a.py", LINE),
        (5, 1, "horovodrun -np 4 python a.py", LINE),
        (6, 2, "horovod.torch.nothing", NOT),
        (9, 1, "HOROVOD_CYCLE_TIME=fast", LINE),
        (9, 2, "horovod.torch.other", NOT),
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": 1}', '{"cells": [1, {"source": 2}]}', "null"])
def test_what_is_no_notebook_says_nothing(text: str) -> None:
    assert in_cells(text) == []


def test_a_cell_is_told_with_its_line() -> None:
    text = notebook("import horovod.torch as hvd\n\nhvd.frobnicate()")
    told = command.report_text(found("a.ipynb", text), 1)
    assert "NOT   a.ipynb:cell 2:3  horovod.torch.frobnicate" in told
    findings = json.loads(command.report_json(found("a.ipynb", text), ["a.ipynb"]))["findings"]
    assert [(each["cell"], each["line"]) for each in findings] == [(2, 1), (2, 3)]


WORKFLOW = """\
env:
  HOROVOD_CYCLE_TIME: fast
jobs:
  test:
    runs-on: ubuntu-latest
    container: horovod/horovod:0.28.1
    steps:
      - uses: actions/checkout@v4
      - run: pip install horovod==0.28.1
      - name: horovodrun is a word here
        run: |
          set -e
          horovodrun -np 2 \\
            python a.py
"""
GITLAB = """\
image: horovod/horovod:0.28.1
test:
  variables: {HOROVOD_CYCLE_TIME: fast}
  before_script:
    - pip install horovod==0.28.1
  script: ["true", "mpirun -np 2 python a.py"]
"""


@pytest.mark.parametrize(
    ("name", "text", "lines", "starts"),
    [
        (".github/workflows/test.yml", WORKFLOW, (2, 6, 9, 13), "horovodrun -np 2 python a.py"),
        (".gitlab-ci.yml", GITLAB, (3, 1, 5, 6), "mpirun -np 2 python a.py"),
    ],
)
def test_a_file_of_continuous_integration(name: str, text: str, lines: tuple[int, ...], starts: str) -> None:
    variable, image, pip, start = lines
    wanted = [
        (variable, "HOROVOD_CYCLE_TIME=fast", LINE),
        (image, "FROM horovod/horovod:0.28.1", LINE),
        (pip, "horovod==0.28.1", LINE),
        (start, starts, LINE),
    ]
    assert seen(name, text) == sorted(wanted)
    assert seen(name, "a: [\n") == []


def test_hidden_folders_of_ci_are_read(tmp_path: Path) -> None:
    for folder in (".git", ".venv", ".ipynb_checkpoints", ".github/workflows", ".circleci"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.yml").touch()
        (tmp_path / folder / "b.ipynb").touch()
    (tmp_path / ".gitlab-ci.yml").touch()
    (tmp_path / "c.ipynb").touch()
    read = [str(path.relative_to(tmp_path)) for path in project.files(tmp_path)]
    ci = [f"{folder}/{name}" for folder in (".circleci", ".github/workflows") for name in ("a.yml", "b.ipynb")]
    assert read == [*ci, ".gitlab-ci.yml", "c.ipynb"]
