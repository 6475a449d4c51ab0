#!/usr/bin/env bash
# Generates the data, trains and evaluates quire-demo on one GPU. See README.md beside this file.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
model=$here/../../python/quire/demo_model  # tokenizer and configuration
out=${1:?usage: run.sh OUT_DIR [STEPS] [WORK_DIR]}
steps=${2:-6500}
work=${3:-/tmp/quire-demo-work}
batch=128

mkdir -p "$out" "$work/hf"
python3 "$here/make_data.py" --tokenizer "$model" --out "$work/data" --rows $((steps * batch)) \
  --workers "$(nproc)"
python3 "$here/train.py" --model "$model" --data "$work/data" --out "$out" --steps "$steps" \
  --batch "$batch"
cp "$model"/*.json "$out/model.safetensors" "$work/hf/"
python3 "$here/evaluate.py" --model "$work/hf" --out "$out/evaluation.json"
