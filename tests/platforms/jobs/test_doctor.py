"""``hvdrun doctor``: findings in a Horovod project's files, line by line, and their remedies."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hvdtest import golden
from hypothesis import example, given
from hypothesis import strategies as st

from hvd_kernel.launch.cli import main
from hvd_kernel.launch.doctor import command, framework_rules, ignoring, python_code
from hvd_kernel.launch.doctor.finding import MIN_PYTHON, MIN_TORCH, Finding, Verdict

DATA = Path(__file__).parents[1] / "data"
HVD = "import horovod.torch as hvd\n"


def found(name: str, text: str) -> list[Finding]:
    return command.findings_of([(name, text)])


@golden.titles(DATA / "doctor.json")
def test_file_gives_its_findings(table: Path, title: str) -> None:
    golden.check(table, title, findings_of)


def findings_of(case: golden.Case) -> object:
    """Return cell (of a notebook), line, verdict, subject, detail and remedy of each finding."""
    text = notebook(*case["cells"]) if "cells" in case else golden.text_of(case, DATA)
    return [
        [*([row.cell] if row.cell else []), row.line, row.verdict.value, row.subject, row.detail, row.remedy]
        for row in command.findings_of([(case["file"], text)])
    ]


def notebook(*cells: list[str]) -> str:
    listed = [{"cell_type": "code", "source": "\n".join(lines)} for lines in cells]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# Horovod\n"]}, *listed], "nbformat": 4})


def test_installed_shims_make_all_lines_run() -> None:
    text = "mpirun -np 2 python a.py\nhorovodrun -np 2 python a.py\nsrun python a.py\npip install horovod\n"
    ready = {"mpirun", "horovodrun", "import", "horovod"}
    assert {each.verdict for each in command.findings_of([("a.sh", text)], ready)} == {Verdict.RUNS}


def test_project_without_horovod_has_no_findings() -> None:
    lines = ("a.sh", "mpirun -np 2 python a.py\nsrun python a.py\n")
    assert command.findings_of([lines, ("a.py", "import mpi4py\n")]) == []
    assert len(command.findings_of([lines, ("a.py", HVD)])) == 3


@pytest.mark.nightly
def test_names_of_horovod_torch_are_known_without_torch() -> None:
    import hvd_kernel.torch

    missing = [name for name in hvd_kernel.torch.__all__ if not python_code.module_has("horovod.torch", name)]
    assert missing == []
    assert not python_code.module_has("horovod.torch", "nothing")


def test_oldest_versions_are_those_of_the_package() -> None:
    text = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert f'requires-python = ">={MIN_PYTHON}"' in text
    assert f'"torch>={MIN_TORCH},' in text


def test_report_and_exit_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
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
        "2 files read, 2 findings: 1 runs as it is, 1 needs a line",
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
def test_any_text_gives_findings(name: str, text: str) -> None:
    listed = found(name, text)
    assert all(1 <= each.line <= len(text.splitlines()) and each.subject for each in listed)
    assert command.report_text(listed, 1).count("\n") > sum(bool(each.remedy) for each in listed)


def test_report_names_the_cell_and_its_line() -> None:
    text = notebook(["import horovod.torch as hvd", "", "hvd.frobnicate()"])
    told = command.report_text(found("a.ipynb", text), 1)
    assert "NOT   a.ipynb:cell 2:3  horovod.torch.frobnicate" in told
    findings = json.loads(command.report_json(found("a.ipynb", text), ["a.ipynb"]))["findings"]
    assert [(each["cell"], each["line"]) for each in findings] == [(2, 1), (2, 3)]


def test_hidden_folders_of_ci_are_read(tmp_path: Path) -> None:
    for folder in (".git", ".venv", ".ipynb_checkpoints", ".github/workflows", ".circleci"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.yml").touch()
        (tmp_path / folder / "b.ipynb").touch()
    (tmp_path / ".gitlab-ci.yml").touch()
    (tmp_path / "c.ipynb").touch()
    read = [str(path.relative_to(tmp_path)) for path in command.files(tmp_path)]
    ci = [f"{folder}/{name}" for folder in (".circleci", ".github/workflows") for name in ("a.yml", "b.ipynb")]
    assert read == [*ci, ".gitlab-ci.yml", "c.ipynb"]


def subjects(*texts: tuple[str, str]) -> list[str]:
    return [each.subject for each in command.findings_of(texts)]


def test_lines_without_horovod_are_no_findings() -> None:
    """Each of these was reported, although it has nothing to do with Horovod."""
    docker = ("Dockerfile", "RUN python get-pip.py && python setup.py bdist_wheel\nRUN python tools/clean.py\n")
    texts = [("train.py", HVD), ("tools/clean.py", "import os\n"), docker]
    assert subjects(*texts) == ["import horovod.torch"]
    assert subjects(*texts, ("run.sh", "python train.py\n")) == ["import horovod.torch", "python train.py"]
    compose = "services:\n  lab:\n    image: jupyter/base-notebook\n    command: jupyter lab\n"
    assert subjects(("docker-compose.yml", compose)) == []
    assert subjects(("cleanup.yml", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: it}\nspec: {}\n")) == []


def test_script_that_uses_horovod_by_a_module_is_found() -> None:
    modules = [("pkg/dist.py", HVD), ("pkg/model.py", "from . import dist\n"), ("other.py", "import os\n")]
    texts = [*modules, ("train.py", "import pkg.model\n"), ("run.sh", "python train.py\npython other.py\n")]
    assert subjects(*texts) == ["import horovod.torch", "python train.py"]


def test_legacy_keras_of_a_project_keeps_keras_2() -> None:
    script = ("a.py", HVD + "import tensorflow as tf\nopt.variables()\n")
    assert subjects(script)[1:] == ["opt.variables()"]
    assert subjects(script, ("Dockerfile", "ENV TF_USE_LEGACY_KERAS=1\n"))[1:] == []
    assert framework_rules.LEGACY_KERAS in framework_rules.KEYWORDS["compile", "experimental_run_tf_function"].remedy


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.py", b"print 'horovod'\n", "Missing parentheses in call to 'print'. Did you mean print(...)?"),
        ("a.sh", b"\xff\xfe", "it is not text in UTF-8"),
        ("a.py", b"# coding: nonsense\n", "it is not text in UTF-8"),
        ("a.sh", b"#" * ((1 << 20) + 1), "it has 1048577 bytes, and 1048576 are allowed"),
    ],
    ids=["Python 2", "bytes", "coding", "long"],
)
def test_unread_file_is_never_status_zero(name: str, content: bytes, reason: str, tmp_path: Path, capsys) -> None:
    (tmp_path / name).write_bytes(content)
    assert main.main(["doctor", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(python_code.NOT_READ.format(reason=reason))
    assert lines[-1] == "1 file read, 1 finding: 1 is unsure"


def test_declared_encoding_of_a_python_file_is_used(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes("# coding: latin-1\nx = 'é'\n".encode("latin-1"))
    assert command.text_of(path) == "# coding: latin-1\nx = 'é'\n"


def test_comment_and_file_ignore_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("vendor").mkdir()
    Path("vendor/old.py").write_text("print 'horovod'\n")
    Path("run.sh").write_text(f"horovodrun -np 2 python a.py  # {ignoring.COMMENT}\nmpirun -np 2 python a.py\n")
    assert main.main(["doctor", "."]) == 1
    assert "2 findings" in capsys.readouterr().out.splitlines()[-1]
    Path(ignoring.FILE).write_text("# of the vendor\n\nvendor/*\nrun.sh: mpirun\n")
    assert main.main(["doctor", "."]) == 0
    Path(ignoring.FILE).write_text("vendor/*\nrun.sh: srun\n")
    assert main.main(["doctor", "."]) == 1


def test_too_many_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_MAX_FILES", 1)
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    with pytest.raises(command.UsageError) as error:
        command.files(tmp_path)
    assert str(error.value) == command.TOO_MANY.format(path=tmp_path, count=2, most=1)
