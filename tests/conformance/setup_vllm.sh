#!/usr/bin/env bash
# Makes the environment that vllm_oracle.py, record_parsers.py and vllm_scheduler_bench.py run in: vLLM's Python
# code with just what its scheduler and its parsers import. Needs Python 3.12, no GPU and no driver. Safe to run
# again.
#
#   tests/conformance/setup_vllm.sh [DIR]        DIR: the environment, .venv-vllm in this repository by default
#
#   PYTHON312    the interpreter                 default: python3.12 from PATH
#   TORCH_SPEC   which torch                     default: torch==2.11.*, what this vLLM asks for
#   VLLM_WHEEL   a wheel that is already here    default: downloaded
#
# pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, pip.conf) are honoured. Any build
# of torch does; a CPU-only index saves several GB of CUDA libraries that stay unused.
set -euo pipefail

readonly vllm_version=0.26.0
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
readonly environment=${1:-$repository/.venv-vllm}
readonly python312=${PYTHON312:-python3.12}

# What importing vllm.v1.core.sched and the parsers of answers, and building an EngineArgs configuration, need;
# the rest of vLLM's requirements are kernels and servers. The bounds are vLLM's own.
readonly requirements=(
  aiohttp blake3 cachetools cbor2 cloudpickle einops ijson jinja2 mistral_common msgspec numpy openai
  openai-harmony partial-json-parser pillow prometheus_client psutil py-cpuinfo pybase64 pydantic pyyaml
  pyzmq regex requests tokenizers tqdm uvloop
  'llguidance>=1.7,<1.8' 'safetensors>=0.6.2' 'setuptools>=77.0.3,<81' 'transformers>=5.5.3,<6'
  'xgrammar>=0.2.1,<1'
)

if ! "$python312" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
  echo "Python 3.12 is needed; set PYTHON312 to it (tried: $python312)" >&2
  exit 1
fi

[[ -x $environment/bin/python ]] || "$python312" -m venv "$environment"
readonly python=$environment/bin/python

# One resolution for both, or the second could move what the first one chose. pip's complaints about
# what vLLM lacks are expected.
"$python" -m pip install --quiet --no-warn-conflicts "${TORCH_SPEC:-torch==2.11.*}" "${requirements[@]}"
if [[ $("$python" -c 'import importlib.metadata as m; print(m.version("vllm"))' 2>/dev/null) != "$vllm_version" ]]; then
  "$python" -m pip install --quiet --no-warn-conflicts --no-deps "${VLLM_WHEEL:-vllm==$vllm_version}"
fi

"$python" "$repository/tests/conformance/vllm_oracle.py" </dev/null
echo "ready: $python"
