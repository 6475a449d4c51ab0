"""The bundled model's two trained adapters, and what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from quire import LLM, LoRARequest, SamplingParams
from triton_fixtures import ENGINE
from triton_server import TritonServer

ADAPTERS = Path(__file__).resolve().parents[1] / "python/data/adapters"
NAMES = ("", "sailor", "json")  # "": the model itself
PROMPT = "Once upon a time"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
ONLY_NEW = {"exclude_input_in_output": True}
LORA = {**ENGINE, "enable_lora": "true", "max_loras": 2}


@pytest.fixture(scope="session")
def lora_llm(demo_model: Path) -> LLM:
    return LLM(demo_model, num_threads=1, enable_lora=True, max_loras=2)


def lora_request(name: str) -> LoRARequest | None:
    return LoRARequest(name, 0, ADAPTERS / name) if name else None


@pytest.fixture(scope="session")
def lora_texts(lora_llm: LLM) -> dict[str, str]:
    """What quire.LLM continues PROMPT with, by adapter."""
    texts = {}
    for name in NAMES:
        [answer] = lora_llm.generate(
            [PROMPT], SamplingParams(**GREEDY), use_tqdm=False, lora_request=lora_request(name)
        )
        texts[name] = answer.outputs[0].text
    assert len(set(texts.values())) == 3
    return texts


def write_model(
    server: TritonServer, name: str, parameters: dict[str, Any], loras: object = None, **options: Any
) -> Path:
    """Returns the version directory, where multi_lora.json is if there are any."""
    server.write_model(name, parameters, **options)
    directory = server.repository / name / "1"
    if loras is not None:
        text = loras if isinstance(loras, str) else json.dumps(loras)
        (directory / "multi_lora.json").write_text(text)
    return directory
