#!/usr/bin/env bash
# The checks that need a CUDA device, in 9 minutes: builds, tests with ranks as processes, measures, tests natively on the real
# driver; prints Markdown for docs/gpu-results.md. On a bare machine with Python >= 3.11, torch with CUDA, nvcc, cmake, ninja,
# pybind11, scikit-build-core and mpi4py, without network. What it prints, and the log of each part: gpu_* in $OUT, or in build.
#   bash tools/gpu/check.sh fetch [3.12]   where there is a network: what such a machine may lack, into build/carry
#   bash tools/gpu/check.sh [pytest's arguments]
# A wheel of this tree for that Python and device in build/carry (pip wheel . -C cmake.define.HVD_CUDA=ON ...) saves the build.
set -euo pipefail
cd "$(dirname "$0")/../.."
carried="$PWD/build/carry"
if [ "${1:-}" = fetch ]; then
  mkdir -p "$carried/doctest"
  cp "$(printf '%s\n' "${DOCTEST_DIR:-/usr/include}/doctest/doctest.h")" "$carried/doctest/"
  exec python3 -m pip download -q --no-deps --only-binary :all: --python-version "${2:-3.12}" -d "$carried" \
    -c .ci/constraints.txt -r tools/gpu/carried.txt
fi
mkdir -p "${OUT:-build}"
logs=$(cd "${OUT:-build}" && pwd)
rm -f "$logs"/gpu_*.log "$logs/gpu_report.md"
failed=0 ended=0 whole=540 patience=30 # what is told to end may take that long to say what has failed so far
say() { printf '%s\n' "$*" | tee -a "$logs/gpu_report.md"; }
left() { echo $((whole - patience - SECONDS)); }
within() { # seconds at most, of the nine minutes as many as are left; command
  local left
  left=$(left)
  timeout --signal=INT --kill-after="$patience" "$(($1 < left ? $1 : left > 1 ? left : 1))" "${@:2}"
}
part() { # title, log, seconds, command: what it says at the end, and how it ended
  local title=$1 log="$logs/gpu_$2.log" begin=$SECONDS how
  ended=0
  if [ "$(left)" -lt 5 ]; then
    ended=1 failed=1
    say "- $title: not run, the time is over"
    return
  fi
  within "${@:3}" >>"$log" 2>&1 || ended=$?
  if [[ $title == compute-sanitizer* ]] && grep -q "Device not supported" "$log"; then # on some virtual machines
    say "- $title: not run: Device not supported"
    return
  fi
  case $ended in 0) how=passed ;; 124 | 137) how="FAILED (cut short)" ;; *) how="FAILED (status $ended)" ;; esac
  say "- $title: $how, $((SECONDS - begin)) s. $(tail -n 1 "$log" | tr -d = | cut -c -200)"
  [ "$ended" = 0 ] || { failed=1; tail -n 40 "$log" | cut -c -200 >&2; }
}
wheels=("$carried"/*.whl)
[ ! -e "${wheels[0]}" ] || python3 -m pip install -q --no-deps --no-index --root-user-action=ignore "${wheels[@]}" ||
  echo "pip refuses what was carried here; going on with what there is" >&2
rm -rf build/gpu && mkdir -p build/gpu
read -r target gpu < <(python3 -c 'import torch
print("%d%d" % torch.cuda.get_device_capability(), torch.cuda.get_device_name())') || true
[ -n "${target:-}" ] || { echo "torch sees no CUDA device here: nvidia-smi says whether there is one" >&2; exit 1; }
python3 - "$gpu" <<'PY' | tee -a "$logs/gpu_report.md"
import os, pathlib, platform, re, sys, torch
version = pathlib.Path("/proc/driver/nvidia/version")
driver = re.search(r"\d+\.\d+\.\d+|$", version.read_text() if version.exists() else "").group() or "?"
print(f"## {sys.argv[1]}, driver {driver}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, torch {torch.__version__}\n")
PY
build=(python3 -m pip install -q --no-build-isolation --no-deps --no-index --root-user-action=ignore
  -C cmake.define.HVD_CUDA=ON -C cmake.define.HVD_CUDA_TARGETS="$target" -C build-dir=build/gpu/wheel)
warnings_allowed=()
made=("$carried"/hvd_kernel-*.whl) # installed above
[ -e "${made[0]}" ] || part "build and install" build 200 "${build[@]}" .
if [ "$ended" != 0 ]; then # a compiler that we have not tried may warn: a failure, but the device is not here for that
  warnings_allowed=('CMAKE_CXX_COMPILE_OBJECT=<CMAKE_CXX_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -Wno-error -o <OBJECT> -c <SOURCE>')
  part "build and install, warnings allowed" build 150 "${build[@]}" "${warnings_allowed[@]/#/-Ccmake.define.}" .
fi
[ "$ended" = 0 ] || exit 1
mkdir -p build/gpu/notebooks
cp -r tests tools pyproject.toml build/gpu/ && cp -r notebooks/scripts build/gpu/notebooks/
doctest=$carried building= kernels=(-DHVD_CUDA_TARGETS="$target")
[ -e build/gpu/wheel/hvd_kernels.fatbin ] && kernels=(-DHVD_CUDA_FATBIN="$PWD/build/gpu/wheel/hvd_kernels.fatbin")
[ -e "$carried/doctest/doctest.h" ] || doctest=${DOCTEST_DIR:-/usr/include}
if [ -e "$doctest/doctest/doctest.h" ]; then
  ( # beside the tests with ranks, with the wheel's kernels where it was built here: nvcc takes longest
    part "native tests, configuration" build 60 cmake -G Ninja -S native -B build/gpu/native -DHVD_PYTHON=OFF -DHVD_MPI=OFF \
      -DHVD_TESTS=ON -DHVD_CUDA=ON "${kernels[@]}" -DDOCTEST_DIR="$doctest" \
      -DCMAKE_BUILD_TYPE=Release "${warnings_allowed[@]/#/-D}"
    [ "$ended" != 0 ] || part "native tests, build" build 150 cmake --build build/gpu/native --target cuda_tests nccl_tests
    exit "$ended"
  ) &
  building=$!
fi
part "tests with ranks as processes" ranks 150 env -C build/gpu HVDTEST_FAILURES="$logs/gpu_failures.log" HVDTEST_LONGEST_S=30 \
  PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python3 -u -P -m pytest -v -p no:cacheprovider -p pytest_timeout --maxfail=8 tests/gpu "$@"
built=0
[ -z "$building" ] || wait "$building" || built=$? failed=1
within 225 env -C build/gpu python3 -u -P tools/gpu/side_by_side.py 2>"$logs/gpu_side_by_side.log" | tee -a "$logs/gpu_report.md" ||
  { failed=1; say "- ranks that share a device: a bound is MISSED, or measuring was cut short"; tail -n 20 "$logs/gpu_side_by_side.log" | cut -c -200 >&2; }
for each in start:60 frameworks:75 mps_faults:75; do # each prints its table
  within "${each#*:}" env -C build/gpu python3 -u -P "tools/gpu/${each%:*}.py" 2>"$logs/gpu_${each%:*}.log" | tee -a "$logs/gpu_report.md" ||
    { failed=1; say "- ${each%:*}: FAILED, or cut short"; tail -n 20 "$logs/gpu_${each%:*}.log" | cut -c -200 >&2; }
done
within 120 env -C build/gpu python3 -u -P tools/gpu/measure.py 2>"$logs/gpu_measure.log" | tee -a "$logs/gpu_report.md" ||
  { failed=1; say "| measuring FAILED or was cut short |"; tail -n 20 "$logs/gpu_measure.log" | cut -c -200 >&2; }
say ""
# By default streams of a context share 8 queues, where a kernel that waits for another rank's may stand before it: here ranks
# are threads of one context.
export CUDA_DEVICE_MAX_CONNECTIONS=32
if [ -z "$building" ]; then
  say "- native tests: not run, doctest's header is not here (bash tools/gpu/check.sh fetch)"
elif [ "$built" = 0 ]; then
  part "native tests, speed" native 40 build/gpu/native/cuda_tests --no-intro=true -tc="speed*"
  say "$(grep -o "packing and scaling.*%" "$logs/gpu_native.log" | sed 's/^/- /')"
  for room in cuda nccl; do part "native tests, $room" native 90 "build/gpu/native/${room}_tests" --no-intro=true; done
  for tool in memcheck racecheck; do
    command -v compute-sanitizer >/dev/null || { say "- compute-sanitizer: not run, it is not here"; break; }
    part "compute-sanitizer, $tool" "$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      build/gpu/native/cuda_tests --no-intro=true -tc="kernels shared*,kernels fold: as many*"
  done
fi
exit "$failed"
