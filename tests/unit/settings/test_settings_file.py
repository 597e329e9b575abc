"""Settings in a Jupyter configuration file: traitlets made from the table, precedence, and errors of wrong values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hvdtest.magic_lines import parse
from ipykernel.ipkernel import IPythonKernel
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config
from traitlets.config.loader import DeferredConfigString, PyFileConfigLoader

from hvd_kernel.errors import ConfigError
from hvd_kernel.kernel.kernel import HvdKernel
from hvd_kernel.magics import load_ipython_extension, manager_of, unload_ipython_extension
from hvd_kernel.magics.cluster_request import default_cluster, requested_cluster
from hvd_kernel.processes.cluster_spec import ClusterSpec
from hvd_kernel.settings import SETTINGS, lookup
from hvd_kernel.settings.traits import ROWS, Section, variables_of


def section(**values: object) -> Section:
    config = Config()
    config.HvdKernel.update(values)
    return Section(config=config)


@pytest.fixture
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in SETTINGS:
        for name in row.variables:
            monkeypatch.delenv(name, raising=False)


def test_settings_of_the_user_have_traitlets() -> None:
    names = [row.trait for row in ROWS]
    assert len(set(names)) == len(names)
    assert {row.variables[0] for row in SETTINGS} - {row.variables[0] for row in ROWS} == {
        *("HOROVOD_RANK", "HOROVOD_CONTROLLER_ADDR", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HVD_BOOTSTRAP"),
        *("HVD_FAILPOINT", "HVD_TRACK_RUN", "HVD_SECRET_KEY", "HVD_CUDA_DRIVER", "HVD_WORKER", "HVD_SLOT"),
        "HVD_TORCH_ADDRESS",
    }
    assert not set(names) & set(dir(IPythonKernel)), "these names mean something else in ipykernel's kernel"
    assert set(names) <= set(HvdKernel.class_trait_names(config=True))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.trait)
def test_help_of_the_kernel_gives_type_meaning_and_variable(row) -> None:
    told = HvdKernel.class_get_trait_help(HvdKernel.class_traits()[row.trait])
    assert told.startswith(f"--HvdKernel.{row.trait}=<{row.check.type}>")
    assert all(name in " ".join(told.split()) for name in row.variables)
    assert " ".join(row.doc.split()) in " ".join(told.split())


def test_values_of_a_file_are_those_of_variables() -> None:
    said = section(ranks=4, gpus=[0, 1], autotune=True, spares=0, keep="train", hosts="h1:2,h2:2", stop_abort=2.5)
    assert variables_of(said) == {
        "HVD_RANKS": "4",
        "HVD_GPUS": "0,1",
        "HVD_AUTOTUNE": "1",
        "HVD_SPARES": "0",
        "HVD_KEEP": "train",
        "HVD_HOSTS": "h1:2,h2:2",
        "HVD_STOP_ABORT": "2.5",
    }
    assert variables_of(section()) == {}
    assert variables_of(section(ranks=DeferredConfigString("3"))) == {"HVD_RANKS": "3"}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        (
            "ranks",
            0,
            "c.HvdKernel.ranks = 0 in {file} cannot be used: it must be a whole number from 1 to 2147483647 (",
        ),
        (
            "ranks",
            "four",
            "c.HvdKernel.ranks = 'four' in {file} cannot be used: it must be a whole number from 1 to 2147483647",
        ),
        ("respawn", "always", "c.HvdKernel.respawn = 'always' in {file} cannot be used: it must be one of auto, off ("),
        ("gpus", "one", "c.HvdKernel.gpus = 'one' in {file} cannot be used: it must be auto, all, none or numbers"),
        ("keep", "all", "c.HvdKernel.keep = 'all' in {file} cannot be used: it must be 0, 1 or a name"),
    ],
)
def test_wrong_value_is_reported_with_its_name_and_file(name: str, value: object, wanted: str, tmp_path: Path) -> None:
    file, other = tmp_path / "ipython_kernel_config.py", tmp_path / "jupyter_config.py"
    file.write_text(f"c.HvdKernel.{name} = {value!r}\n")
    other.write_text("c.Session.username = 'me'\n")
    read = Section(config=PyFileConfigLoader(str(file)).load_config())
    with pytest.raises(ConfigError) as caught:
        variables_of(read, [str(other), str(file), str(tmp_path / "gone.py")])
    assert str(caught.value).startswith(wanted.format(file=file))


@pytest.mark.usefixtures("nothing_said")
def test_cell_option_beats_file_beats_environment_beats_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HVD_RANKS", "5")
    assert default_cluster().n == 5
    shell = InteractiveShell(config=Config(HvdKernel={"ranks": 3, "respawn": "auto", "mpi_args": "--bind-to none"}))
    load_ipython_extension(shell)
    try:
        assert default_cluster() == ClusterSpec(3, mpi_args=("--bind-to", "none"))
        assert lookup.value("HVD_RESPAWN", os.environ) == "auto"
        assert requested_cluster(parse("%%hvdrun", ""), default_cluster()).n == 3
        assert requested_cluster(parse("%%hvdrun", "-np 2"), default_cluster()) == ClusterSpec(
            2, mpi_args=("--bind-to", "none")
        )
    finally:
        unload_ipython_extension(shell)
    assert (default_cluster().n, "HVD_RESPAWN" in os.environ) == (5, False), (
        "what the file said is gone with the magics"
    )


@pytest.mark.usefixtures("nothing_said")
def test_hosts_of_the_settings_give_the_number_of_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVD_HOSTS", "h1:2,h2:1")
    assert default_cluster() == ClusterSpec(3, hosts="h1:2,h2:1")
    assert requested_cluster(parse("%hvd", "start -H h3:2"), default_cluster()) == ClusterSpec(2, hosts="h3:2")
    monkeypatch.setenv("HVD_HOSTFILE", str(tmp_path / "hosts"))
    with pytest.raises(ConfigError, match="HVD_HOSTS and HVD_HOSTFILE both say where the ranks run: keep one of them"):
        default_cluster()
    monkeypatch.delenv("HVD_HOSTS")
    (tmp_path / "hosts").write_text("h1 slots=4\n")
    assert default_cluster() == ClusterSpec(4, hostfile=str(tmp_path / "hosts"))


@pytest.mark.usefixtures("nothing_said")
def test_wrong_file_loads_and_is_reported_when_ranks_start() -> None:
    shell = InteractiveShell(config=Config(HvdKernel={"spares": "many"}))
    load_ipython_extension(shell)
    try:
        manager = manager_of(shell)
        assert manager is not None
        with pytest.raises(ConfigError, match=r"^c\.HvdKernel\.spares = 'many' cannot be used: it must be a whole"):
            manager.start(ClusterSpec(1), print)
    finally:
        unload_ipython_extension(shell)
