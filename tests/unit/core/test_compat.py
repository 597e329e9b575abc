"""Horovod's module names resolve to our modules if the real package is absent, without side effects on others."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hvd_kernel.torch
from hvd_kernel import compat, elastic, errors
from hvd_kernel.compat.finder import HorovodFinder, real_exists, target_of
from hvd_kernel.core import process_sets

SITE = str(Path(compat.__file__).with_name("site"))


@pytest.fixture
def installed() -> Iterator[None]:
    compat.install()
    yield
    compat.uninstall()


def python(code: str, *options: str, cwd: Path | None = None, **env: str) -> str:
    """Return the output of a new Python; its failure fails the test."""
    clean = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "HVD_COMPAT"}}
    done = subprocess.run(
        [sys.executable, *options, *(["-c", code] if code else [])],
        env=clean | env,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def rank(**env: str) -> dict[str, str]:
    return env | compat.rank_environment(env)


NAMES = {
    "horovod.torch": "hvd_kernel.torch",
    "horovod.torch.mpi_ops": "hvd_kernel.torch.mpi_ops",
    "horovod.torch.compression": "hvd_kernel.torch.compression",
    "horovod.torch.functions": "hvd_kernel.torch.functions",
    "horovod.torch.optimizer": "hvd_kernel.torch.optimizer",
    "horovod.torch.sync_batch_norm": "hvd_kernel.torch.sync_batch_norm",
    "horovod.torch.elastic": "hvd_kernel.torch.elastic",
    "horovod.torch.elastic.state": "hvd_kernel.torch.elastic.state",
    "horovod.torch.elastic.sampler": "hvd_kernel.torch.elastic.sampler",
    "horovod.data": "hvd_kernel.data",
    "horovod.data.data_loader_base": "hvd_kernel.data.data_loader_base",
    "horovod.common.process_sets": "hvd_kernel.core.process_sets",
    "horovod.common.elastic": "hvd_kernel.elastic",
    "horovod.runner.elastic.worker": "hvd_kernel.elastic.updates",
}


@pytest.mark.parametrize(("name", "target"), NAMES.items())
def test_module_has_two_names(installed: None, name: str, target: str) -> None:
    assert importlib.import_module(name) is importlib.import_module(target)
    assert target_of(name) == target
    module = sys.modules[target]
    assert (module.__name__, module.__spec__.name) == (target, target), "the alias leaves the module as it was"


def test_import_statements_of_programs(installed: None) -> None:
    import horovod
    import horovod.torch as hvd
    from horovod import torch as same
    from horovod.common.basics import HorovodBasics
    from horovod.common.elastic import ObjectState, run_fn
    from horovod.common.exceptions import HorovodInternalError, HorovodVersionMismatchError, HostsUpdatedInterrupt
    from horovod.common.process_sets import ProcessSet
    from horovod.common.util import env, gloo_built, mpi_built, nccl_built, num_rank_is_power_2, split_list
    from horovod.runner.elastic.worker import HostUpdateResult
    from horovod.torch.elastic import ElasticSampler, TorchState
    from horovod.torch.mpi_ops import allreduce_async_, rank, size, synchronize

    from hvd_kernel.core import build_info

    assert hvd is same is horovod.torch is hvd_kernel.torch
    assert (hvd.elastic.TorchState, hvd.elastic.ElasticSampler) == (TorchState, ElasticSampler)
    assert (rank, size, synchronize) == (hvd.rank, hvd.size, hvd.synchronize)
    assert allreduce_async_ is hvd_kernel.torch.allreduce_async_
    assert hvd.ProcessSet is ProcessSet is process_sets.ProcessSet
    assert (ObjectState, run_fn) == (elastic.ObjectState, elastic.run_fn)
    assert hvd.HorovodInternalError is HorovodInternalError is errors.HorovodInternalError
    assert isinstance(errors.Mismatch(), HorovodInternalError)
    assert issubclass(HorovodVersionMismatchError, ImportError)
    assert HostsUpdatedInterrupt(skip_sync=True).skip_sync
    assert (HostUpdateResult.removed | HostUpdateResult.added) == HostUpdateResult.mixed == 3
    assert tuple(int(part) for part in horovod.__version__.split(".")) == (0, 28, 1)
    assert [gloo_built(verbose=True), mpi_built()] == [True, True]
    assert nccl_built() == build_info.nccl_built()
    assert split_list([1, 2, 3, 4, 5], 3) == [[1, 2], [3, 4], [5]]
    assert [n for n in range(9) if num_rank_is_power_2(n)] == [1, 2, 4, 8]
    basics = HorovodBasics(__file__, "mpi_lib_v2")
    assert (basics.is_initialized(), basics.gloo_built(), basics.Sum) == (False, True, hvd.Sum)
    with pytest.raises(ValueError, match="Horovod has not been initialized"):
        basics.rank()
    with env(HVDTEST_A="1", HVDTEST_B=None):
        assert os.environ["HVDTEST_A"] == "1"
    assert "HVDTEST_A" not in os.environ


def test_find_spec_and_reload(installed: None) -> None:
    assert importlib.util.find_spec("horovod") is not None
    assert importlib.util.find_spec("horovod.torch") is not None
    from horovod.torch import compression

    assert importlib.reload(compression) is compression is sys.modules["hvd_kernel.torch.compression"]
    assert importlib.reload(sys.modules["horovod"]) is sys.modules["horovod"]


def test_a_reload_changes_no_identity(installed: None) -> None:
    """compression, reloaded above, has new classes; the package still has its original ones."""
    import horovod.torch as hvd

    assert hvd.Compression is hvd_kernel.torch.Compression


def test_pickle_and_module_names(installed: None) -> None:
    import horovod.torch as hvd
    import torch

    for thing in (hvd.allreduce, hvd.ProcessSet, hvd.elastic.ElasticSampler, hvd.HorovodInternalError):
        assert pickle.loads(pickle.dumps(thing)) is thing
        assert getattr(sys.modules[thing.__module__], thing.__name__) is thing
    by_horovods_name = b"chorovod.torch.mpi_ops\nallreduce\n."
    assert pickle.loads(by_horovods_name) is hvd.allreduce
    assert hvd.DistributedOptimizer.__module__ == "hvd_kernel.torch.optimizer"
    assert isinstance(torch.optim.SGD([torch.ones(1)], lr=1), torch.optim.Optimizer)


NOT_THERE = ["horovod.tensor", "horovod.torch.mpi_lib_v2", "horovod.ray.nothing", "horovod.spark.gloo_run"]


@pytest.mark.parametrize("name", NOT_THERE)
def test_missing_module_has_no_spec_and_its_import_says_why(installed: None, name: str) -> None:
    text = rf"No module named '{name}': hvd_kernel stands in for Horovod.* has horovod, horovod\.torch"
    for _ in range(2):
        assert importlib.util.find_spec(name) is None
        for load in (importlib.import_module, __import__):
            with pytest.raises(ModuleNotFoundError, match=text) as caught:
                load(name)
            assert caught.value.name == name
    assert not [module for module in sys.modules if module.startswith(name)]


def test_import_within_find_spec_reports_the_reason(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """find_spec("asks.below") imports asks, which itself imports a missing module: that is not a query."""
    (tmp_path / "asks").mkdir()
    (tmp_path / "asks" / "__init__.py").write_text("import horovod.tensor\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="hvd_kernel stands in for Horovod"):
        importlib.util.find_spec("asks.below")


def test_from_horovod_import_of_a_missing_name(installed: None) -> None:
    with pytest.raises(ImportError, match="cannot import name 'tensor'"):
        exec("from horovod import tensor")


def test_uninstalled_finder_is_gone() -> None:
    compat.install()
    compat.install()
    assert sum(isinstance(finder, HorovodFinder) for finder in sys.meta_path) == 1
    importlib.import_module("horovod.torch")
    compat.uninstall()
    assert importlib.util.find_spec("horovod") is None
    assert not [name for name in sys.modules if name.startswith("horovod")]


def test_nothing_named_horovod_is_installed() -> None:
    assert importlib.util.find_spec("horovod") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("horovod")


# A real horovod.

REAL = '__version__ = "real"\n'


@pytest.fixture
def real(tmp_path: Path) -> Path:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text(REAL)
    (tmp_path / "horovod" / "torch.py").write_text("who = 'real'\n")
    return tmp_path


SAYS = "import horovod; print(horovod.__version__)"


def test_real_horovod_is_preferred_unless_configured(real: Path) -> None:
    path = str(real)
    assert python(SAYS, **rank(PYTHONPATH=path)) == "real"
    assert python("import horovod.torch; print(horovod.torch.who)", **rank(PYTHONPATH=path)) == "real"
    assert python(SAYS, **rank(PYTHONPATH=path, HVD_COMPAT="shadow")) == "0.28.1"
    assert python(SAYS, **rank(PYTHONPATH=path, HVD_COMPAT="0")) == "real"


def test_shadowing_after_the_import_is_refused(real: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(real))
    importlib.import_module("horovod")
    assert real_exists()
    try:
        with pytest.raises(errors.UsageError, match="call install\\(shadow=True\\) before"):
            compat.install(shadow=True)
    finally:
        del sys.modules["horovod"]


def test_bare_folder_named_horovod_is_not_the_real_package(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "train.py").write_text("")
    assert python(SAYS, cwd=tmp_path, **rank()) == "0.28.1"


# What a launcher's ranks get.


def test_rank_environment() -> None:
    assert compat.rank_environment({}) == {"HVD_COMPAT": "1", "PYTHONPATH": SITE}
    assert compat.rank_environment({"PYTHONPATH": "/a:/b"})["PYTHONPATH"] == f"{SITE}:/a:/b"
    twice = compat.rank_environment({"PYTHONPATH": f"/a:{SITE}"})
    assert twice["PYTHONPATH"] == f"{SITE}:/a"
    assert compat.rank_environment({"HVD_COMPAT": "0"}) == {}
    with pytest.raises(errors.ConfigError, match="HVD_COMPAT='maybe' cannot be used"):
        compat.rank_environment({"HVD_COMPAT": "maybe"})


def test_rank_and_children_have_the_names_and_others_do_not() -> None:
    assert python(SAYS, **rank()) == "0.28.1"
    child = f"import subprocess, sys; print(subprocess.run([sys.executable, '-c', {SAYS!r}], capture_output=True, text=True, check=False).stdout)"
    assert python(child, **rank()) == "0.28.1"
    assert python("import importlib.util as u; print(u.find_spec('horovod'))") == "None"


def test_start_loads_no_torch_and_leaves_no_path_entry() -> None:
    code = "import sys; print({'torch', 'numpy', 'hvd_kernel._native'} & set(sys.modules), [f for f in sys.path if 'compat' in f])"
    assert python(code, **rank()) == "set() []"


@pytest.mark.parametrize(
    ("told", "said"), [({}, "0.28.1"), ({"HVD_COMPAT": "0"}, "none"), ({"HVD_COMPAT": "1"}, "0.28.1")]
)
def test_setting_applies_to_this_process_alone(told: dict[str, str], said: str) -> None:
    code = """
import importlib.util, os
from hvd_kernel import compat
before = dict(os.environ)
compat.install_by_environment()
assert os.environ == before
print("none" if importlib.util.find_spec("horovod") is None else __import__("horovod").__version__)
"""
    assert python(code, **told) == said


def test_the_environments_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import horovod\nmine = horovod.__version__\n")
    code = "import sitecustomize; print(sitecustomize.mine, sitecustomize.__file__)"
    said = python(code, **rank(PYTHONPATH=str(tmp_path)))
    assert said == f"0.28.1 {tmp_path / 'sitecustomize.py'}"


def test_python_m(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, beside, horovod.data as hvd\nprint(__name__, sys.argv[1:], beside.x, hvd.__name__)\n"
    )
    (tmp_path / "beside.py").write_text("x = 1\n")
    expected = "__main__ ['--lr', '1'] 1 hvd_kernel.data"
    assert python("", "-m", "hvd_kernel.compat", str(script), "--lr", "1") == expected
    assert python("", "-m", "hvd_kernel.compat", "-m", "train", "--lr", "1", PYTHONPATH=str(tmp_path)) == expected
    assert python("", str(script), "--lr", "1", **rank()) == expected
    assert python("", "-m", "horovod.runner.elastic.worker", **rank()) == "", "a module of ours under Horovod's name"
