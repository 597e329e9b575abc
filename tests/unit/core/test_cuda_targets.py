"""Kinds of CUDA devices that a build compiles kernels for: this machine's, all for a wheel, one where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TARGETS = Path(__file__).resolve().parents[3] / "native" / "cuda" / "kernels" / "targets.cmake"
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
NVCC = "printf 'sm_75\\nsm_80\\nsm_90\\nsm_100\\n'"
ABSENT = "exit 9"


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("request_", "devices", "targets"),
    [
        ("AUTO", "printf '9.0\\n'", "90"),
        ("AUTO", "printf '9.0\\n8.0\\n9.0\\n9.0\\n'", "80;90"),
        ("AUTO", "printf '10.0\\n7.5\\n'", "75;100"),
        ("AUTO", "printf '10.3\\n'", "75"),  # newer than nvcc: PTX
        ("AUTO", "printf '[N/A]\\n'", "75"),
        ("AUTO", "echo 'No devices were found'; exit 6", "75"),
        ("AUTO", ABSENT, "75"),
        ("ALL", "printf '9.0\\n'", "75;80;86;89;90;100"),
        ("80;90", "printf '7.5\\n'", "80;90"),
    ],
)
def test_kernels_are_compiled_for(tmp_path: Path, request_: str, devices: str, targets: str) -> None:
    nvcc = program(tmp_path, "nvcc", NVCC)
    program(tmp_path, "nvidia-smi", devices)
    script = tmp_path / "show.cmake"
    script.write_text(
        f'include("{TARGETS}")\nhvd_cuda_targets(targets "{request_}" "{nvcc}")\nmessage(NOTICE "${{targets}}")\n'
    )
    assert CMAKE is not None
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([CMAKE, "-P", script], env=env, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == targets
