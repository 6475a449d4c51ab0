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

# print_load FILE: of samples of power and clock the half with more power, which is when the card had work.
print_load() {
  sort -g "$1" | awk -F', *' '
    $1 + 0 > 0 { watts[++n] = $1; mhz[n] = $2 }
    END {
      first = int(n / 2) + 1
      for (i = first; i <= n; ++i) { power += watts[i]; clock += mhz[i] }
      if (n > 0) printf "   the card at work: %.0f W, %.0f MHz\n", power / (n - first + 1), clock / (n - first + 1)
    }'
}

# run_part NAME SECONDS COMMAND ...: a program that may take so long; keeps the outcome. With watch_load=1 it says
# what power the card took meanwhile, and at which clock: a card at its limit of power lowers its clock.
gpu_outcomes=()
gpu_failures=0
run_part() {
  local name=$1 limit=$2 begin=$SECONDS outcome=passed status=0 samples watcher
  shift 2
  echo "== $name"
  if [[ -n ${watch_load:-} ]]; then
    samples=$(mktemp)
    # An interrupted script does not interrupt what it has in the background.
    timeout $((limit + 10)) nvidia-smi --query-gpu=power.draw.instant,clocks.sm --format=csv,noheader,nounits -lms 200 \
      >"$samples" 2>&1 &
    watcher=$!
  fi
  timeout --kill-after=10 "$limit" "$@" || status=$?
  if [[ -n ${watch_load:-} ]]; then
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    print_load "$samples"
    rm -f "$samples"
  fi
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
