"""Adapters for Lightning and Hugging Face's Trainer where those are not installed: what is said, and that nobody else imports them."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hvdtest.offenders import PRODUCT, imports, name, nobody, sources

from hvd_kernel.formatting.install_command import install_command

LIBRARIES = {"lightning", "lightning_fabric", "pytorch_lightning", "transformers", "accelerate"}
ADAPTERS = ("hvd_kernel/integrations/", "hvd_kernel/spark/lightning/")


@pytest.mark.parametrize(
    ("library", "extra"),
    [("lightning", "lightning"), ("pytorch_lightning", "lightning"), ("transformers", "transformers")],
)
def test_without_the_library_the_line_that_installs_it(
    library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"hvd_kernel.integrations.{library}", raising=False)
    wanted = f"hvd_kernel.integrations.{library} needs {library}: {install_command(extra)}"
    with pytest.raises(ModuleNotFoundError, match=re.escape(wanted)) as caught:
        importlib.import_module(f"hvd_kernel.integrations.{library}")
    assert caught.value.name == library


def test_nobody_else_imports_them() -> None:
    def imported(path: Path) -> Iterator[tuple[int, str]]:
        yield from ((line, target[0]) for target, line in imports(path) if target[0] in LIBRARIES)

    others = [path for path in sources(*PRODUCT) if not name(path).startswith(ADAPTERS)]
    nobody("only the adapters import these libraries", others, imported)
