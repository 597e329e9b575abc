#!/usr/bin/env bash
# The checks that need a CUDA device, on a bare machine with Python >= 3.11, torch with CUDA, cmake, ninja, pybind11,
# scikit-build-core, mpi4py and pytest, without network: installs the project, tests, measures; prints Markdown.
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m pip install -q --no-build-isolation --no-deps --no-index --root-user-action=ignore .
python3 - <<'PY'
import platform, os, torch
gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no CUDA device"
print(f"## {gpu}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, torch {torch.__version__}\n")
PY
rm -rf build/gpu && mkdir -p build/gpu && cp -r tests build/gpu/tests && cp pyproject.toml build/gpu/ && cd build/gpu
python3 -P -m pytest -q -p no:cacheprovider tests/gpu "$@"
python3 -P tests/gpu/measure.py
