"""Notebooks as files, and the tools that run them."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat

from hvd_kernel import kernel

ROOT = Path(__file__).resolve().parents[2]
SANITIZER = ROOT / "notebooks" / "nbval_sanitize.cfg"
IGNORED = "# NBVAL_IGNORE_OUTPUT"
ALL = sorted((ROOT / "notebooks").glob("*.ipynb"))


def run(*words: str, **variables: str) -> None:
    """Run a module from the root, without pytest's variables, which would change the kernel's behaviour."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} | variables
    command = [sys.executable, "-P", "-m", *words]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def kernels_of(python: Path, folder: Path) -> Path:
    """Create a folder for JUPYTER_PATH with the hvd_kernel of another Python."""
    spec = json.loads(Path(str(kernel.__file__)).with_name("spec").joinpath("kernel.json").read_text())
    spec["argv"][0] = str(python)
    (place := folder / "kernels" / "hvd_kernel").mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec))
    return folder


def outputs(path: Path) -> list[list[tuple[str, ...]]]:
    """Return for each code cell that nbval compares its outputs' kinds, and the text without variable parts."""
    notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    compared = [cell for cell in notebook.cells if cell.cell_type == "code" and not cell.source.startswith(IGNORED)]
    return [[_said(output) for output in cell.outputs] for cell in compared]


def _said(output: dict[str, Any]) -> tuple[str, ...]:
    kind = str(output["output_type"])
    if kind == "stream":
        return kind, output["name"], _sanitized(output["text"])
    if kind == "error":
        return kind, output["ename"], _sanitized(output["evalue"])
    return kind, *sorted(output["data"]), _sanitized(output["data"]["text/plain"])


def _sanitized(text: str) -> str:
    rules = configparser.RawConfigParser()
    rules.read(SANITIZER)
    for section in rules.sections():
        text = re.sub(rules[section]["regex"], rules[section]["replace"], text)
    return text
