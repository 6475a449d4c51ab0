"""A library of models, named by a parameter of the model that needs it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from model_plugins import built_plugins, write_cohere
from paths import ROOT
from quire import LLM, SamplingParams
from triton_fixtures import ENGINE
from triton_server import TritonServer


def test_a_library_lies_beside_its_model(
    server: TritonServer,
    models: Callable[..., None],
    demo_model: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = write_cohere(tmp_path / "model", demo_model)
    build_dir = ROOT / os.environ.get("QUIRE_BUILD_DIR", "build/default")
    library = built_plugins(build_dir, tmp_path_factory) / "libcohere.so"
    server.write_model("cohere", {"model": model, **ENGINE, "plugins": "./libcohere.so"})
    missing = server.try_to_load("cohere")
    assert missing.status == 400, missing
    assert "plugins: cannot load" in missing.body and "/cohere/1/libcohere.so" in missing.body
    shutil.copy(library, server.repository / "cohere" / "1")
    models("cohere", {"model": model, "plugins": json.dumps(["./libcohere.so"])})
    prompt = "Once upon a time"
    answer = server.generate("cohere", text_input=prompt, max_tokens=8, temperature=0)["text_output"]
    llm = LLM(model, plugins=[library], **ENGINE)
    expected = llm.generate(prompt, SamplingParams(max_tokens=8, temperature=0), use_tqdm=False)[0]
    assert answer == prompt + expected.outputs[0].text
