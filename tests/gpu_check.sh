#!/usr/bin/env bash
# The checks that need a CUDA device, in 9 minutes: builds, tests natively on the real driver, tests with ranks as processes,
# measures; prints Markdown for docs/gpu-results.md. On a bare machine with Python >= 3.11, torch with CUDA, nvcc, cmake, ninja,
# pybind11, scikit-build-core and mpi4py, without network.
#   bash tests/gpu_check.sh fetch [3.12]   where there is a network: what such a machine may lack, into build/carry
#   bash tests/gpu_check.sh [pytest's arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
carried="$PWD/build/carry"
log="$PWD/build/gpu_check.log"
if [ "${1:-}" = fetch ]; then
  mkdir -p "$carried/doctest"
  cp "$(printf '%s\n' "${DOCTEST_DIR:-/usr/include}/doctest/doctest.h")" "$carried/doctest/"
  exec python3 -m pip download -q --no-deps --only-binary :all: --python-version "${2:-3.12}" -d "$carried" \
    pytest pytest-timeout pluggy iniconfig packaging pygments cloudpickle nvidia-ml-py
fi
failed=0
within() { # seconds at most, of the nine minutes as many as are left
  local left=$((540 - SECONDS))
  timeout --kill-after=5 "$(($1 < left ? $1 : left > 1 ? left : 1))" "${@:2}"
}
part() { # title, seconds, command: what it says at the end, and how it ended
  local title=$1 begin=$SECONDS status=0
  within "${@:2}" >"$log" 2>&1 || status=$?
  echo "- $title: $([ "$status" = 0 ] && echo passed || echo "FAILED (status $status)"), $((SECONDS - begin)) s. $(tail -n 1 "$log")"
  [ "$status" = 0 ] || { failed=1; tail -n 40 "$log" >&2; }
}
wheels=("$carried"/*.whl)
[ ! -e "${wheels[0]}" ] || python3 -m pip install -q --no-deps --no-index --root-user-action=ignore "${wheels[@]}"
rm -rf build/gpu && mkdir -p build/gpu
read -r target gpu < <(python3 -c 'import torch
print("%d%d" % torch.cuda.get_device_capability(), torch.cuda.get_device_name())') || true
[ -n "${target:-}" ] || { echo "torch sees no CUDA device here: nvidia-smi says whether there is one" >&2; exit 1; }
python3 - "$gpu" <<'PY'
import os, platform, sys, torch
driver = open("/proc/driver/nvidia/version").read().split("Module")[-1].split()[0] if os.path.exists("/proc/driver/nvidia/version") else "?"
print(f"## {sys.argv[1]}, driver {driver}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, torch {torch.__version__}\n")
PY
part "build and install" 240 python3 -m pip install -q --no-build-isolation --no-deps --no-index --root-user-action=ignore \
  -C cmake.define.HVD_CUDA=ON -C cmake.define.HVD_CUDA_TARGETS="$target" -C build-dir=build/gpu/wheel .
[ "$failed" = 0 ] || exit 1
cp -r tests pyproject.toml build/gpu/
doctest=$carried
[ -e "$carried/doctest/doctest.h" ] || doctest=${DOCTEST_DIR:-/usr/include}
if [ -e "$doctest/doctest/doctest.h" ]; then
  native() {
    cmake -G Ninja -S native -B build/gpu/native -DHVD_PYTHON=OFF -DHVD_MPI=OFF -DHVD_TESTS=ON -DHVD_CUDA=ON \
      -DHVD_CUDA_TARGETS="$1" -DDOCTEST_DIR="$2" -DCMAKE_BUILD_TYPE=Release && cmake --build build/gpu/native --target cuda_tests nccl_tests
  }
  export -f native
  part "native tests, build" 150 bash -c 'native "$@"' native "$target" "$doctest"
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      part "compute-sanitizer, $tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 build/gpu/native/cuda_tests --no-intro=true -tc="kernels shared*,kernels fold: as many*"
    done
  else
    echo "- compute-sanitizer: not run, it is not here"
  fi
  within 60 build/gpu/native/cuda_tests --no-intro=true -tc="speed*" 2>&1 | grep -o "packing and scaling.*%" | sed 's/^/- /' || true
  for room in cuda nccl; do part "native tests, $room" 90 "build/gpu/native/${room}_tests" --no-intro=true; done
else
  echo "- native tests: not run, doctest's header is not here (bash tests/gpu_check.sh fetch)"
fi
cd build/gpu
part "tests with ranks as processes" 240 python3 -P -m pytest -q -p no:cacheprovider tests/gpu "$@"
within 240 python3 -P tests/gpu/measure.py || { failed=1; echo "measuring FAILED or was cut short" >&2; }
exit "$failed"
