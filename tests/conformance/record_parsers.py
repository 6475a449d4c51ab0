"""Records what vLLM's parsers make of whole answers, so that it can be compared where vLLM is not installed::

    .venv-vllm/bin/python tests/conformance/record_parsers.py > tests/conformance/recorded_parsers.json

Runs in the environment that setup_vllm.sh makes.
"""
# ruff: noqa: RUF001  (markers hold look-alike characters)

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
from importlib import import_module
from typing import Any

from parser_samples import REASONING, TOOLS, tool_samples, whole_samples

PROTOCOL = "vllm.entrypoints.openai.chat_completion.protocol"
# The special tokens that parsers look up.
VOCABULARY = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<longcat_tool_call>",
    "</longcat_tool_call>",
    "<|python_tag|>",
    "<|tool_call|>",
    "<tool_calls>",
    "</tool_calls>",
    "[TOOL_CALLS]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_call_argument_begin|>",
    "<seed:tool_call>",
    "</seed:tool_call>",
    "<seed:think>",
    "</seed:think>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<|action_start|>",
    "<|plugin|>",
    "<|action_end|>",
    "<|tool_call_start|>",
    "<|python_start|>",
    "<|python_end|>",
    "｜DSML｜",
]


class Vocabulary:
    """As much of a tokenizer as parsers of text ask for."""

    def __init__(self, tokens: list[str]) -> None:
        self.ids = {token: i for i, token in enumerate(tokens)}

    def get_vocab(self) -> dict[str, int]:
        return self.ids

    def encode(self, text: str, **_: object) -> list[int]:
        return [self.ids[text]] if text in self.ids else []


def vllm_name(name: str) -> tuple[str, Vocabulary]:
    """vLLM asks the vocabulary for Mistral's version."""
    if name == "mistral":
        return name, Vocabulary([*VOCABULARY, "[ARGS]"])
    return name.removesuffix("_pre_v11"), Vocabulary(VOCABULARY)


def tool_calls(name: str, text: str) -> dict[str, Any]:
    protocol = import_module(PROTOCOL)
    manager = import_module("vllm.tool_parsers").ToolParserManager
    registered, vocabulary = vllm_name(name)
    tools = [protocol.ChatCompletionToolsParam(**tool) for tool in TOOLS]
    request = protocol.ChatCompletionRequest(messages=[], model="", tools=tools, tool_choice="auto")
    parser: Any = manager.get_tool_parser(registered)(vocabulary, tools)
    # The parsers that read reasoning too begin with it.
    extract = getattr(parser, "extract_tool_calls_from_content", parser.extract_tool_calls)
    found = extract(text, request)
    calls = [[call.function.name, call.function.arguments] for call in found.tool_calls]
    return {"content": found.content or "", "calls": calls}


def reasoning(name: str, text: str) -> dict[str, Any]:
    request = import_module(PROTOCOL).ChatCompletionRequest(messages=[], model="")
    manager = import_module("vllm.reasoning").ReasoningParserManager
    parser: Any = manager.get_reasoning_parser(name)(Vocabulary(VOCABULARY))
    thoughts, content = parser.extract_reasoning(text, request)
    return {"reasoning": thoughts or "", "content": content or ""}


# The classes that read reasoning and calls at once.
WHOLE_PARSERS = {
    "qwen3": ("qwen3", "Qwen3Parser"),
    "seed_oss": ("seed_oss", "SeedOssParser"),
    "glm45": ("glm47_moe", "Glm47MoeParser"),
    "kimi_k2": ("kimi_k2", "KimiK2Parser"),
    "minimax_m2": ("minimax_m2", "MinimaxM2Parser"),
    "nemotron_v3": ("nemotron_v3", "NemotronV3Parser"),
    "deepseek_v4": ("deepseek_v4", "DeepSeekV4Parser"),
}


def whole(name: str, text: str) -> dict[str, Any]:
    protocol = import_module(PROTOCOL)
    tools = [protocol.ChatCompletionToolsParam(**tool) for tool in TOOLS]
    request = protocol.ChatCompletionRequest(messages=[], model="", tools=tools, tool_choice="auto")
    module, parser_class = WHOLE_PARSERS[name]
    make: Any = getattr(import_module(f"vllm.parser.{module}"), parser_class)
    parser = make(Vocabulary(VOCABULARY), tools, chat_template_kwargs={"enable_thinking": True})
    thoughts, content, calls = parser.parse(text, request, enable_auto_tools=True)
    return {
        "reasoning": thoughts or "",
        "content": content or "",
        "calls": [[call.name, call.arguments] for call in calls or []],
    }


def main() -> None:
    logging.disable(logging.CRITICAL)
    recorded = {
        "vllm": importlib.metadata.version("vllm"),
        "made_by": "tests/conformance/record_parsers.py",
        "tools": TOOLS,
        "tool_calls": [{"parser": n, "text": t, "answer": tool_calls(n, t)} for n, t in tool_samples()],
        "whole": [
            {"reasoning_parser": r, "parser": n, "text": t, "answer": whole(r, t)}
            for r, n, t in whole_samples()
        ],
        "reasoning": [
            {"parser": n, "text": t, "answer": reasoning(n, t)} for n, ts in REASONING.items() for t in ts
        ],
    }
    json.dump(recorded, sys.stdout, ensure_ascii=False, indent=0)
    print()


if __name__ == "__main__":
    main()
