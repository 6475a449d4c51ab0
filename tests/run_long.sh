#!/usr/bin/env bash
# What takes too long for every change: run before a release, or after a change to what a section names.
#
#   tests/run_long.sh [SECTION ...]      all sections by default
#
#   QUIRE_BUILD_DIR     the build whose programs are run        default: build/default
#   QUIRE_VLLM_PYTHON   Python with vLLM's scheduler            default: .venv-vllm/bin/python (setup_vllm.sh)
#   CONFORMANCE_SEEDS   traces for vLLM and us                  default: 0:10000
#   FUZZ_SECONDS        for each fuzz target of build/asan, and for quire export      default: 300
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly build=${QUIRE_BUILD_DIR:-build/default}
readonly python=${PYTHON:-.venv/bin/python}
readonly conformance_seeds=${CONFORMANCE_SEEDS:-0:10000}
readonly fuzz_seconds=${FUZZ_SECONDS:-300}

# The scheduler's decisions against vLLM's, on random traces.
conformance() {
  echo "seeds $conformance_seeds"
  "$python" tests/conformance/compare.py --seeds "$conformance_seeds" \
    --runner "$build/tests/tools/quire_trace_runner" \
    --vllm-python "${QUIRE_VLLM_PYTHON:-.venv-vllm/bin/python}"
}

# A million requests over a thousand engines, behind each router. Needs the installed package.
simulation() {
  for router in round_robin least_loaded prefix_aware; do
    "$python" -m quire.cli simulate --requests 1000000 --engines 1000 --rate 8000 --router "$router" \
      --prefix-share 0.3
  done
}

# Each fuzz target under the address sanitizer (`make sanitize` builds them), and damaged files of torch's to the
# installed package, with another seed each day.
fuzz() {
  local seeds
  QUIRE_FUZZ_SECONDS="$fuzz_seconds" QUIRE_FUZZ_SEED="$(date +%Y%m%d)" \
    "$python" -m pytest tests/python/test_export_fuzz.py -n 0 --durations=0
  for seeds in tests/fuzz/seeds/*_fuzz; do
    echo "$seeds, seed $(date +%Y%m%d)"
    build/asan/tests/fuzz/quire_fuzz "$(basename "$seeds")" --seconds "$fuzz_seconds" --seed "$(date +%Y%m%d)" "$seeds"
  done
}

# The Triton backend's faults in full numbers, against a real server: 500 cancelled streams, 200 killed clients, 10,000
# malformed requests, 100 loads, and the end of a server with the timeouts it has by itself. Needs the installed
# package, or QUIRE_TRITON_BACKENDS.
triton() {
  QUIRE_TRITON_FAULTS=full "$python" -m pytest tests/triton/test_faults.py tests/triton/test_server_end.py --durations=0
}

# What CI tests on a part: every code point through each tokenizer, all prompts of the demo model beside transformers,
# engines of random settings beside one that serves a request at a time, config.json files that nobody published.
everything() {
  QUIRE_TESTS=full "$python" -m pytest tests/python/test_tokenizer.py tests/python/test_demo_model.py \
    tests/python/test_any_company.py tests/python/test_config_keys.py
}

# What is sent to the server that nobody would write, and its failures, in full numbers: 20,000 requests made of its
# description, as many of bytes that are hardly HTTP, five minutes of ten times what it can serve, 5,000 clients that
# leave. Needs the installed package.
serve() {
  QUIRE_TESTS=full "$python" -m pytest tests/python/test_serve_fuzz.py tests/python/test_serve_faults.py -n 0 --durations=0
}

# A million loads, unloads, requests and aborts of adapters in one engine, twice.
adapters() {
  QUIRE_LORA_OPERATIONS=1000000 "$build/tests/cpp/quire_cpp_tests" --gtest_filter='*LoraSoakTest*'
}

# A million tiny requests to a server, whose memory does not grow. Takes some ten minutes.
serve_million() {
  QUIRE_TESTS=million "$python" -m pytest tests/python/test_serve_faults.py -k tiny -n 0 --durations=0
}

# KV pools beyond 4 GiB, 1,024 rows at once, prompts of 16,384 tokens in a step, vocabularies of 262,144, contexts of
# 131,072. Takes 8 GB of memory and a few minutes. Needs the installed package.
large() {
  local -r needed_kib=$((8 << 20))
  local available_kib
  available_kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  if ((available_kib < needed_kib)); then
    echo "large needs 8 GB of memory, $((available_kib >> 20)) GB are available" >&2
    return 1
  fi
  QUIRE_TESTS=large "$python" -m pytest tests/python/test_large.py -n 0 --durations=0
}

# Each source file of the libraries compiles by itself, as in the trees to work in.
alone() { make alone; }

# The C++ tests and fuzz targets with every check of the sanitizers, optimised.
sanitizers() {
  cmake --preset asan-all
  cmake --build --preset asan-all -j "$(nproc)"
  ctest --preset asan-all -j "$(nproc)"
}

readonly all_sections=(conformance simulation fuzz triton everything adapters serve serve_million large alone sanitizers)

if (($# > 0)); then sections=("$@"); else sections=("${all_sections[@]}"); fi
changes=$(git status --porcelain --untracked-files=no | wc -l)
echo "commit $(git rev-parse HEAD), $changes files changed since"
for section in "${sections[@]}"; do
  if [[ " ${all_sections[*]} " != *" $section "* ]]; then
    echo "no such section: $section (there are: ${all_sections[*]})" >&2
    exit 2
  fi
  echo "== $section"
  start=$SECONDS
  "$section"
  echo "== $section passed in $((SECONDS - start)) s"
done
