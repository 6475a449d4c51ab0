#!/usr/bin/env bash
# Runs a GoogleTest program; fails also when its filter chose no test, or tests were skipped for want of a device.
#
#   tests/gtest_some.sh PROGRAM [ARGUMENT ...]
set -euo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$@" --gtest_brief=0 --gtest_color=no | tee "$log" | grep -v '^\[ \+\(RUN\|OK\) ' || [[ ${PIPESTATUS[0]} == 0 ]]
if ! grep -q '^\[  PASSED  \] [1-9]' "$log"; then
  echo "no test ran, or not to its end" >&2
  exit 1
fi
if grep -q '^no CUDA device' "$log"; then
  echo "there is no CUDA device" >&2
  exit 1
fi
