#!/usr/bin/env bash
# The GPU's benchmarks, to stdout: each row of the H200 tables with its peers' figures and the target, and behind
# each part the card's power and clock.
#
#   benchmarks/run_gpu.sh [PART ...]      all parts by default but peers and torch, ranks with two GPUs
#
#   card        how quickly this card reads and multiplies, by which the other rows can be judged
#   engine      decode, prefill, throughput, long and shared prompts, start, of the Llama-3.1-8B shape
#   ranks       decode, prefill, throughput and start of Llama-3.1-8B's and 70B's shapes on two devices, and what
#               such devices exchange
#   models      decode and prefill of Gemma 3 12B's, GPT-OSS 20B's, Qwen3-30B-A3B's and Mixtral 8x7B's shapes beside
#               what reading their bytes takes; a shape that is larger than the device is left out
#   peers       the same rows in transformers, after models (needs torch and transformers)
#   torch       torch's attention and cuBLAS at the shapes of attention and ops (needs torch)
#   attention   paged attention alone
#   ops         the other kernels
#   experts     the experts of a layer of published mixtures
#   adapters    low-rank adapters: the linears of a layer with them, and the Llama-3.1-8B shape
#   weights     from the page cache to the device
#   host        the host's time for a step
#
#   QUIRE_BUILD        a build, or a folder of programs, to be used as it is; else build/cuda is built
#   QUIRE_BENCH_DIR    where 4 GB of weights are written, once; default: a temporary folder
#   QUIRE_BENCH_SECONDS  of rows of attention and ops also what they are when they go on for so long, with power
#                      and clock
#   QUIRE_ENGINE_ROWS  rows of engine_bench's: start,decode,prefill,throughput,long,prefix
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/gpu_programs.sh
source tools/gpu_programs.sh
export watch_load=1

engine() {
  run_part engine 1200 "$(gpu_program benchmarks/serving engine_bench)" \
    --rows "${QUIRE_ENGINE_ROWS:-start,decode,prefill,throughput,long,prefix}"
}
ranks() {
  local rows=start,decode,prefill,throughput
  run_part "exchanges of two devices" 60 "$(gpu_program benchmarks/overheads peers_bench)" 2
  run_part "llama-3.1-8b on two devices" 300 "$(gpu_program benchmarks/serving engine_bench)" \
    --rows $rows --set tensor_parallel_size=2
  run_part "llama-3.1-70b on two devices" 900 "$(gpu_program benchmarks/serving engine_bench)" \
    --shape llama-3.1-70b --rows $rows --set tensor_parallel_size=2
}
models() {
  local shape gib memory_gib
  memory_gib=$(($(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -1) / 1024))
  for shape in gemma-3-12b:40 gpt-oss-20b:48 qwen3-30b-a3b:70 mixtral-8x7b:100; do
    gib=${shape#*:}
    if ((memory_gib < gib)); then
      echo "${shape%:*}: left out, it wants $gib GiB of a device that has $memory_gib"
      continue
    fi
    run_part "${shape%:*}" 300 "$(gpu_program benchmarks/serving model_bench)" "${shape%:*}"
  done
}
peers() {
  local shape rows=(--decode 1,1024 --decode 16,1024 --decode 64,1024 --decode 256,1024 --prefill 8192)
  for shape in gemma-3-12b gpt-oss-20b qwen3-30b-a3b mixtral-8x7b; do
    local of_shape=("${rows[@]}")
    [[ $shape != gpt-oss-20b ]] || of_shape=(--decode 1,1024 --decode 64,1024)
    [[ $shape != gemma-3-12b ]] || of_shape=(--decode 1,8192)
    # As model_bench left it.
    run_part "transformers, $shape" 300 "$(gpu_python)" benchmarks/serving/transformers_steps.py \
      "${TMPDIR:-/tmp}/quire-$shape" "${of_shape[@]}"
  done
}
card() { run_part card 60 "$(gpu_program benchmarks/kernels quire_cuda_ops_bench)" card; }
torch() { run_part torch 300 "$(gpu_python)" benchmarks/kernels/torch_kernels.py; }
attention() { run_part attention 300 "$(gpu_program benchmarks/kernels quire_cuda_attention_bench)"; }
ops() { run_part ops 300 "$(gpu_program benchmarks/kernels quire_cuda_ops_bench)"; }
experts() { run_part experts 300 "$(gpu_program benchmarks/kernels quire_cuda_experts_bench)"; }
adapters() {
  run_part "adapters, kernels" 120 "$(gpu_program benchmarks/kernels quire_cuda_lora_bench)"
  run_part adapters 300 "$(gpu_program benchmarks/serving adapters_bench)"
}
weights() {
  run_part weights 300 "$(gpu_program benchmarks/overheads weight_loading_bench)" "${QUIRE_BENCH_DIR:-$scratch}"
}
host() { run_part host 300 "$(gpu_program benchmarks/overheads step_host_bench)"; }

readonly all_parts=(card engine ranks models peers torch attention ops experts adapters weights host)
if (($# > 0)); then
  parts=("$@")
else
  parts=(card engine models attention ops experts adapters weights host)
  (($(nvidia-smi -L 2>/dev/null | wc -l) < 2)) || parts+=(ranks)
fi
for part in "${parts[@]}"; do
  if [[ " ${all_parts[*]} " != *" $part "* ]]; then
    echo "no such part: $part (there are: ${all_parts[*]})" >&2
    exit 2
  fi
done

need_gpu
build_gpu_programs engine_bench model_bench quire_cuda_attention_bench quire_cuda_ops_bench quire_cuda_experts_bench \
  quire_cuda_lora_bench adapters_bench weight_loading_bench step_host_bench peers_bench
print_machine
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for part in "${parts[@]}"; do "$part"; done
summarize
