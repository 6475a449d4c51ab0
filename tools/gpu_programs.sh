# shellcheck shell=bash
# For scripts that run built programs on a GPU; sourced in the repository's root.
#
#   QUIRE_BUILD     a build's directory, or a folder with the programs and libquire.so in it: used as it is.
#                   Without it build/cuda is brought up to date.

own_library_path=${LD_LIBRARY_PATH:-}
gpu_build=$(realpath -m "${QUIRE_BUILD:-build/cuda}")
export LD_LIBRARY_PATH="$gpu_build:$gpu_build/cpp/src${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"

# need_gpu: ends the script where there is none; there, tests would be skipped and pass.
need_gpu() {
  if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "no NVIDIA GPU, or no driver" >&2
    exit 2
  fi
}

# build_gpu_programs NAME ...
build_gpu_programs() {
  [[ -n ${QUIRE_BUILD:-} ]] && return
  export PATH="$PATH:$PWD/.venv/bin"
  cmake --preset cuda
  cmake --build --preset cuda -j "$(nproc)" --target "$@"
}

# gpu_program FOLDER NAME: the program's path.
gpu_program() {
  local path
  for path in "$gpu_build/$1/$2" "$gpu_build/$2"; do
    if [[ -x $path ]]; then
      echo "$path"
      return
    fi
  done
  echo "no program $2 in $gpu_build" >&2
  return 1
}

gpu_python() {
  local python=${PYTHON:-.venv/bin/python}
  [[ -x $(command -v "$python") ]] || python=python3
  echo "$python"
}

print_machine() {
  local commit
  if commit=$(git rev-parse HEAD 2>/dev/null); then
    echo "commit $commit, $(git status --porcelain --untracked-files=no | wc -l) files changed since"
  fi
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader
  "$(gpu_python)" - <<'PYTHON'
import ctypes
import os

for name in (os.environ.get("QUIRE_CUBLASLT"), "libcublasLt.so.13", "libcublasLt.so.12"):
    try:
        version = name and ctypes.CDLL(name).cublasLtGetVersion()
    except OSError:
        continue
    if version:
        print(f"cuBLASLt {version}")
        break
else:
    print("cuBLASLt: not on the linker's path")
PYTHON
}

# run_part NAME SECONDS COMMAND ...: a program that may take so long; keeps the outcome.
gpu_outcomes=()
gpu_failures=0
run_part() {
  local name=$1 limit=$2 begin=$SECONDS outcome=passed status=0
  shift 2
  echo "== $name"
  timeout --kill-after=10 "$limit" "$@" || status=$?
  if ((status == 124 || status == 137)); then outcome="FAILED: took more than $limit s"; fi
  if ((status != 0)) && [[ $outcome == passed ]]; then outcome="FAILED: status $status"; fi
  ((status == 0)) || gpu_failures=$((gpu_failures + 1))
  gpu_outcomes+=("$(printf '%-28s %5d s   %s' "$name" "$((SECONDS - begin))" "$outcome")")
}

# Prints what run_part kept; fails when a part did.
summarize() {
  echo "== summary"
  printf '%s\n' "${gpu_outcomes[@]}"
  ((gpu_failures == 0))
}
