#!/usr/bin/env bash
# Runs one phase of a build: one line that says what and how long, and the whole output only when it fails.
#
#   tools/phase.sh TITLE COMMAND [ARGUMENT ...]
#
# A terminal sees how far Ninja is. VERBOSE=1 shows everything. The output is kept in build/logs/, and what each phase
# took in build/logs/phases.tsv (seconds, title).
set -uo pipefail

title=$1
shift
logs=build/logs
mkdir -p "$logs"
log="$logs/$(tr -cs 'a-zA-Z0-9\n' '-' <<<"$title").log"
begin=$(date +%s%N)

if [ "${VERBOSE:-0}" != 0 ]; then
  echo "== $title: $*"
  "$@" 2>&1 | tee "$log"
  status=${PIPESTATUS[0]}
else
  # A session of its own: who interrupts this script ends all that the command has started.
  setsid "$@" >"$log" 2>&1 </dev/null &
  command=$!
  trap 'kill -TERM -- -$command 2>/dev/null; exit 130' INT TERM HUP
  if [ -t 1 ]; then
    while kill -0 $command 2>/dev/null; do
      printf '\r\033[K%s %s' "$title" "$(tail -c 400 "$log" | grep -oE '^ *\[[0-9]+/[0-9]+\]' | tail -1 | tr -d ' ')"
      sleep 0.5
    done
    printf '\r\033[K'
  fi
  wait $command
  status=$?
fi

tenths=$((($(date +%s%N) - begin) / 100000000))
printf '%d.%d\t%s\n' $((tenths / 10)) $((tenths % 10)) "$title" >>"$logs/phases.tsv"
if [ "$status" -ne 0 ]; then
  [ "${VERBOSE:-0}" != 0 ] || cat "$log"
  echo "$title: FAILED with status $status (output: $log)"
  exit "$status"
fi
printf '%-58s %5d.%d s\n' "$title" $((tenths / 10)) $((tenths % 10))
