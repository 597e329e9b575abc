"""Imports that cannot work name the remedy: adapters without their library, Linux alone; no other module imports those libraries."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.offenders import PRODUCT, ROOT, assert_kept, imports, name, sources

from hvd_kernel.formatting.install_command import install_command

LIBRARIES = {"lightning", "lightning_fabric", "pytorch_lightning", "transformers", "accelerate"}
ADAPTERS = ("hvd_kernel/integrations/", "hvd_kernel/spark/lightning/")


@pytest.mark.parametrize(
    ("library", "extra"),
    [("lightning", "lightning"), ("pytorch_lightning", "lightning"), ("transformers", "transformers")],
)
def test_missing_library_names_its_install_command(library: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"hvd_kernel.integrations.{library}", raising=False)
    wanted = f"hvd_kernel.integrations.{library} needs {library}: {install_command(extra)}"
    with pytest.raises(ModuleNotFoundError, match=re.escape(wanted)) as caught:
        importlib.import_module(f"hvd_kernel.integrations.{library}")
    assert caught.value.name == library


def test_other_modules_do_not_import_the_libraries() -> None:
    def imported(path: Path) -> Iterator[tuple[int, str]]:
        yield from ((line, target[0]) for target, line in imports(path) if target[0] in LIBRARIES)

    others = [path for path in sources(*PRODUCT) if not name(path).startswith(ADAPTERS)]
    assert_kept("only the adapters import these libraries", others, imported)


# Modules for Linux alone report it elsewhere, before an unrelated error is raised.


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_import_on_other_systems_names_the_remedy(platform: str) -> None:
    code = f"import sys; sys.platform = {platform!r}; import hvd_kernel"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"ImportError: hvd_kernel runs on Linux only, this is {platform}" in done.stderr
    assert "WSL 2" in done.stderr


def test_package_and_page_document_the_systems() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "Operating System :: POSIX :: Linux" in project["classifiers"]
    assert "On Linux" in (ROOT / "README.md").read_text()
