#!/usr/bin/env bash
# Everything that needs a GPU, with a summary at the end. Fails when any of it failed.
#
#   tests/run_gpu.sh [--sanitizer] [--soak SECONDS] [PART ...]      the first four by default, ranks with two GPUs
#
#   kernels       each op of the CUDA table against the reference
#   engine        engines against the CPU's and against themselves; weights
#   ranks         engines whose ranks have a device each (needs two that read each other's memory)
#   logits        transformers' logits, for each architecture, and PEFT's, of adapters (needs pytest, torch and
#                 transformers; PEFT, else adapters are skipped)
#   doors         `quire run`, scripts and a Triton server, with the package that is installed (needs pytest)
#   memcheck, racecheck
#                 compute-sanitizer's, on some of the kernels' tests
#   --sanitizer   also: both of these, under six minutes
#   --soak        also: random arrivals and aborts in two engines side by side, for so long
#
#   QUIRE_BUILD   a build, or a folder of programs, to be used as it is; else build/cuda is built
#   PYTHON        default: .venv/bin/python, or python3
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/gpu_programs.sh
source tools/gpu_programs.sh

# Small shapes that reach each family of kernels. Of linears those of int8 and of one row.
readonly memcheck_tests='*BatchOpsTest.*sm_*:*LogitsOpsTest.*sm_*:'\
'*ElementOpsTest.RmsNormMatchesTheReference/*sm_*:*ElementOpsTest.FusedAddIsAddThenNormBitwise/*sm_*:'\
'*ElementOpsTest.FusedNormAddIsItsOpsBitwise/*sm_*:'\
'*ElementOpsTest.LayerNormMatchesTheReference/*sm_*:*ElementOpsTest.RotaryEmbeddingMatchesTheReference/*sm_*:'\
'*ElementOpsTest.ActivationsMatchTheReference/*sm_*:*ElementOpsTest.GatherRowsCopies/*sm_*:'\
'*SamplingTest.TiesAreCutByLowestId/*sm_*:*SamplingTest.ARowDependsOnItselfAlone/*sm_*:'\
'*SamplingTest.GreedyTiesInALargeVocabulary/*sm_*:*/AttentionTest.SoftCapWindowAlibiAndSinks/*sm_*:'\
'*/AttentionTest.PagesBehindTheWindowAreNotRead/*sm_*:*CudaAttentionTest.DecodeRowsComeBeforeChunks/*sm_*:'\
'*CudaAttentionTest.PaddingRowsWriteNothing/*sm_*:*CudaAttentionTest.FusedRotaryEmbeddingIsItsOps/*sm_*:'\
'*QuantizedLinearTest.MatchesTheReference/*sm_*:*/ExpertsTest.RoutingMatchesTheReference/*sm_*:'\
'*/ExpertsTest.MatchesTheReference/*sm_*:*LinearTest.ARowAloneMatchesTheReference/*sm_*:*LoraTest.*sm_*:'\
'*GatedLinearTest.ManyRowsAreActivatedAndMultiplied/*sm_*:'\
'*ExpertLorasReferenceTest.*sm_*'
# What shares memory between threads.
readonly racecheck_tests='*ElementOpsTest.FusedAddIsAddThenNormBitwise/*sm_*:'\
'*ElementOpsTest.FusedNormAddIsItsOpsBitwise/*sm_*:*LogitsOpsTest.LogSoftmaxMatchesTheReference/*sm_*:'\
'*LogitsOpsTest.TopLogprobsAreTheLikeliestInOrder/*sm_*:'\
'*SamplingTest.FiltersOfALargeVocabulary/*sm_*:*SamplingTest.ManyTiesAreCutByLowestId/*sm_*:'\
'*SamplingTest.WhatTheHostKnowsChangesNoToken/*sm_*:*SamplingTest.DrawsFromTheSoftmax/*sm_*:'\
'*CudaAttentionTest.DecodeRowsComeBeforeChunks/*sm_*:*CudaAttentionTest.PaddingRowsWriteNothing/*sm_*:'\
'*QuantizedLinearTest.MatchesTheReference/*sm_*:*/ExpertsTest.RoutingCountsWhatEachExpertWasChosenBy/*sm_*:'\
'*/ExpertsTest.ARowDependsOnItselfAlone/*sm_*:*LoraTest.WithItsLinearAndActivation/*sm_*:'\
'*ExpertLorasReferenceTest.OfFewTokensWithTheQuickestKernel/*sm_*'

kernels() {
  run_part kernels 300 tests/gtest_some.sh "$(gpu_program tests/kernels quire_kernel_tests)" \
    --gtest_filter='*sm_*'
}

engine() {
  run_part engine 400 tests/gtest_some.sh "$(gpu_program tests/cpp quire_cpp_tests)" \
    --gtest_filter='Cuda*:*CudaPeers*:*DeviceLoader*:-CudaRanks*'
}

ranks() {
  run_part ranks 300 tests/gtest_some.sh "$(gpu_program tests/cpp quire_cpp_tests)" \
    --gtest_filter='*CudaPeers*:CudaRanks*'
}

logits() {
  local program
  mkdir -p "$scratch/tests/tools"
  for program in quire_logits quire_lora_logprobs; do
    ln -sf "$(gpu_program tests/tools $program)" "$scratch/tests/tools/$program"
  done
  run_part logits 800 env QUIRE_BUILD_DIR="$scratch" QUIRE_TEST_DEVICE=cuda \
    "$(gpu_python)" -m pytest -p no:cacheprovider -rs tests/python/test_device_logits.py tests/python/test_device_lora.py
}

# The package brings its own libraries. No conftest: it wants the clients that the other tests of the backend use.
doors() {
  run_part doors 300 env LD_LIBRARY_PATH="$own_library_path" QUIRE_TEST_DEVICE=cuda "$(gpu_python)" -m pytest --noconftest -p no:cacheprovider \
    tests/triton/test_device.py
}

# checked SECONDS TOOL TESTS [OPTION ...]
checked() {
  local seconds=$1 tool=$2 tests=$3 check
  shift 3
  check=$(PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin" command -v compute-sanitizer || echo compute-sanitizer)
  run_part "$tool" "$seconds" tests/gtest_some.sh "$check" --tool "$tool" --error-exitcode 1 "$@" \
    "$(gpu_program tests/kernels quire_kernel_tests)" --gtest_filter="$tests"
}

# The library asks the driver for functions that it may lack: errors of calls are the tests' business.
memcheck() { checked 140 memcheck "$memcheck_tests" --report-api-errors no; }
racecheck() { checked 180 racecheck "$racecheck_tests"; }

# The second engine has what the first has not: no graphs, float16, shared prefixes, chunked prompts.
soak() {
  run_part "soak of two engines" $((soak_seconds + 120)) tests/soak_gpu.sh "$soak_seconds" \
    "$(gpu_program tests/cpp quire_cpp_tests)"
}

readonly all_parts=(kernels engine ranks logits doors memcheck racecheck)
default_parts=(kernels engine logits)
(($(nvidia-smi -L 2>/dev/null | wc -l) < 2)) || default_parts+=(ranks)
parts=() more_parts=() soak_seconds=0
while (($# > 0)); do
  case $1 in
    --sanitizer) more_parts+=(memcheck racecheck) ;;
    --soak)
      soak_seconds=${2:?--soak needs a number of seconds}
      more_parts+=(soak)
      shift
      ;;
    *)
      if [[ " ${all_parts[*]} " != *" $1 "* ]]; then
        echo "no such part: $1 (there are: ${all_parts[*]})" >&2
        exit 2
      fi
      parts+=("$1")
      ;;
  esac
  shift
done
# An option alone adds to everything.
((${#parts[@]} > 0)) || parts=("${default_parts[@]}")

need_gpu
build_gpu_programs quire_kernel_tests quire_cpp_tests quire_logits quire_lora_logprobs
print_machine
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for part in "${parts[@]}" "${more_parts[@]}"; do "$part"; done
summarize
