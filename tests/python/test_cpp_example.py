"""An installed tree serves find_package(quire), and the README's C++ example runs against it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from paths import ROOT
from quire import LLM, SamplingParams


def run(*command: str | Path) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_example_builds_against_an_installed_tree(build_dir: Path, demo_model: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "installed"
    run("cmake", "--install", build_dir, "--prefix", prefix, "--component", "dev")
    example = ROOT / "cpp" / "examples"
    run("cmake", "-S", example, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path / "build")
    program = tmp_path / "build" / "quire_example"
    prompt = "Once upon a time"
    output = run(program, demo_model, prompt)
    expected = LLM(demo_model).generate(prompt, SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
    assert output == expected[0].outputs[0].text + "\n"

    # A prompt of three blocks and more: the second engine loads what the first has computed.
    story = "Once upon a time there was a baker who lived by the sea, and every morning she baked bread. " * 4
    output = run(tmp_path / "build" / "quire_shared_prefixes", demo_model, story)
    found = re.fullmatch(r"0 then (\d+) tokens from the store, the same answer\n", output)
    assert found and int(found[1]) >= 48, output

    # The same in C: an answer in chunks, and one at once.
    lines = [
        json.loads(line)
        for line in run(program.with_name("quire_example_c"), demo_model, prompt).splitlines()
    ]
    expected = LLM(demo_model).generate(prompt, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    *chunks, whole = lines
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected[0].outputs[0].text
    assert whole["choices"][0]["text"] == expected[0].outputs[0].text
    assert whole["usage"]["completion_tokens"] == 24

    failed = subprocess.run(
        [program, tmp_path, prompt], capture_output=True, text=True, check=False, env=os.environ
    )
    assert failed.returncode == 1
    assert "tokenizer.json" in failed.stderr or "config.json" in failed.stderr


def test_every_public_header_compiles_alone(build_dir: Path, tmp_path: Path) -> None:
    include = ROOT / "cpp" / "include"
    for header in sorted(include.rglob("*.h")):
        source = tmp_path / "one.cpp"
        source.write_text(f'#include "{header.relative_to(include)}"\n')
        compiler = os.environ.get("CXX", "c++")
        if header.name == "quire.h":
            c_source = tmp_path / "one.c"
            c_source.write_text("#include <quire/quire.h>\n")
            flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
            run(os.environ.get("CC", "cc"), *flags, f"-I{include}", c_source)
        run(
            compiler,
            "-std=c++20",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            f"-I{include}",
            source,
        )
