#!/usr/bin/env bash
# Makes sure of the system packages a step needs: `setup.sh python` for a virtual environment, `base` to build and run
# as well, `test` for the tests too. Installs what is missing through apt as root; otherwise says what to install,
# but for what only some tests want.
set -euo pipefail

has() { command -v "$1" >/dev/null 2>&1; }
has_header() { echo "#include <$1>" | "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1; }

step=${1:-base}
missing=() wanted=() browser=
python=${PYTHON:-python3}
"$python" -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
if [ "$step" != python ]; then
  has "${CXX:-c++}" || missing+=(g++)
  if ! ls "$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"/Python.h >/dev/null 2>&1; then
    missing+=(python3-dev)
  fi
  # Headers are looked for only when there is a compiler to look with; without them the build fetches JSON's.
  if ! has "${CXX:-c++}" || ! has_header nlohmann/json.hpp; then missing+=(nlohmann-json3-dev); fi
fi
if [ "$step" = test ]; then
  has make || missing+=(make)
  has git || missing+=(git)
  if ! has "${CXX:-c++}" || ! has_header gtest/gtest.h; then missing+=(libgtest-dev); fi
  if ! has "${CXX:-c++}" || ! has_header benchmark/benchmark.h; then missing+=(libbenchmark-dev); fi
  has ccache || wanted+=(ccache) # makes the second build quick; nothing needs it
  has chromium || has chromium-browser || has google-chrome || browser=chromium # for the tests of the server's page
fi

if [ "$(id -u)" -eq 0 ] && has apt-get; then
  packages=("${missing[@]}" "${wanted[@]}")
  [ ${#packages[@]} -eq 0 ] && [ -z "$browser" ] && exit 0
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # Ubuntu has none: its package asks for snap's. Where nothing can draw letters, fonts come along.
  if [ -n "$browser" ] && apt-cache show "$browser" >/dev/null 2>&1; then packages+=("$browser" fonts-dejavu-core); fi
  [ ${#packages[@]} -eq 0 ] && exit 0
  apt-get install -y -qq --no-install-recommends "${packages[@]}"
  exit 0
fi
if [ ${#missing[@]} -eq 0 ] || [ "${missing[*]}" = nlohmann-json3-dev ]; then
  exit 0  # the build fetches JSON's headers
fi
echo "Quire needs system packages that are not installed. Install them with:" >&2
echo "  sudo apt-get install ${missing[*]}" >&2
exit 1
