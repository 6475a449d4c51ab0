#!/usr/bin/env bash
# Two engines of different settings, in processes of their own, under random arrivals and aborts.
#
#   tests/soak_gpu.sh SECONDS QUIRE_CPP_TESTS
set -euo pipefail

export QUIRE_SOAK_SECONDS=$1
pids=()
for test in AfterArrivalsAndAbortsEveryBlockIsBack AfterLongPromptsWithSharedBeginningsEveryBlockIsBack; do
  "$(dirname "${BASH_SOURCE[0]}")/gtest_some.sh" "$2" --gtest_filter="CudaEngineTest.$test" &
  pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
exit "$failed"
