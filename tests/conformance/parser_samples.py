"""Answers of models, in each format of tool calls and of reasoning, good ones and others."""
# ruff: noqa: RUF001  (markers hold look-alike characters)

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

Call = tuple[str, dict[str, Any]]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "limit": {"type": "number"},
                    "where": {"type": "object"},
                    "tags": {"type": "array"},
                    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "parameters": {"type": "object", "properties": {}}}},
]

CALLS: list[list[Call]] = [
    [("get_weather", {"city": "Graz", "days": 2})],
    [("noop", {})],
    [("get_weather", {"city": "Łódź 🦊", "exact": True, "limit": 1.5}), ("noop", {})],
    [
        ("get_weather", {"where": {"lat": 1.5, "near": ["a", {"b": None}]}, "tags": ["x", "y z"]}),
        ("get_weather", {"either": 7, "exact": False}),
        ("noop", {}),
    ],
    [("get_weather", {"city": 'a "quoted" \\ {brace} [bracket] <tag> it\'s', "days": -3})],
    [("get_weather", {"city": "two\nlines\tand a tab", "either": "seven"})],
]


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def json_call(call: Call, arguments: str = "arguments") -> str:
    return f'{{"name": {dump(call[0])}, "{arguments}": {dump(call[1])}}}'


def json_array(calls: list[Call]) -> str:
    return "[" + ", ".join(map(json_call, calls)) + "]"


def text_of(value: object) -> str:
    """A value as XML formats have it."""
    return value if isinstance(value, str) else dump(value)


def qwen_call(call: Call) -> str:
    parameters = "".join(f"<parameter={k}>\n{text_of(v)}\n</parameter>\n" for k, v in call[1].items())
    return f"<tool_call>\n<function={call[0]}>\n{parameters}</function>\n</tool_call>"


def glm_call(call: Call) -> str:
    arguments = "".join(
        f"<arg_key>{k}</arg_key>\n<arg_value>{text_of(v)}</arg_value>\n" for k, v in call[1].items()
    )
    return f"<tool_call>{call[0]}\n{arguments}</tool_call>"


def minimax_call(call: Call) -> str:
    parameters = "".join(f'<parameter name="{k}">{text_of(v)}</parameter>\n' for k, v in call[1].items())
    return f'<invoke name="{call[0]}">\n{parameters}</invoke>\n'


def deepseek_xml_call(call: Call) -> str:
    parameters = "".join(
        f'<｜DSML｜parameter name="{k}" string="{str(isinstance(v, str)).lower()}">{text_of(v)}'
        "</｜DSML｜parameter>\n"
        for k, v in call[1].items()
    )
    return f'<｜DSML｜invoke name="{call[0]}">\n{parameters}</｜DSML｜invoke>\n'


def python_call(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{k}={v!r}' for k, v in call[1].items())})"


def lines(render: Callable[[Call], str]) -> Callable[[list[Call]], str]:
    return lambda calls: "\n".join(map(render, calls))


RENDER: dict[str, Callable[[list[Call]], str]] = {
    "hermes": lines(lambda call: f"<tool_call>\n{json_call(call)}\n</tool_call>"),
    "ernie45": lines(lambda call: f"<tool_call>\n{json_call(call)}\n</tool_call>"),
    "granite4": lines(lambda call: f"<tool_call>\n{json_call(call)}\n</tool_call>"),
    "granite-20b-fc": lines(lambda call: f"<function_call> {json_call(call)}"),
    "longcat": lines(lambda call: f"<longcat_tool_call>\n{json_call(call)}\n</longcat_tool_call>"),
    "llama3_json": lambda calls: "; ".join(json_call(call, "parameters") for call in calls),
    "llama4_json": lambda calls: "<|python_tag|>" + "; ".join(json_call(c, "parameters") for c in calls),
    "granite": lambda calls: "<|tool_call|>" + json_array(calls),
    "phi4_mini_json": lambda calls: "functools" + json_array(calls),
    "hunyuan_a13b": lambda calls: "<tool_calls>" + json_array(calls) + "</tool_calls>",
    "jamba": lambda calls: "<tool_calls>" + json_array(calls) + "</tool_calls>",
    "internlm": lambda calls: (
        f"<|action_start|><|plugin|>\n{json_call(calls[0], 'parameters')}<|action_end|>"
    ),
    "mistral": lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{dump(args)}" for name, args in calls),
    "mistral_pre_v11": lambda calls: "[TOOL_CALLS] " + json_array(calls),
    "deepseek_v3": lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dump(args)}\n```<｜tool▁call▁end｜>"
            for name, args in calls
        )
        + "<｜tool▁calls▁end｜>"
    ),
    "deepseek_v31": lambda calls: (
        "<｜tool▁calls▁begin｜>"
        + "".join(
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dump(args)}<｜tool▁call▁end｜>"
            for name, args in calls
        )
        + "<｜tool▁calls▁end｜>"
    ),
    "deepseek_v32": lambda calls: (
        "<｜DSML｜function_calls>\n" + "".join(map(deepseek_xml_call, calls)) + "</｜DSML｜function_calls>"
    ),
    "deepseek_v4": lambda calls: (
        "<｜DSML｜tool_calls>\n" + "".join(map(deepseek_xml_call, calls)) + "</｜DSML｜tool_calls>"
    ),
    "kimi_k2": lambda calls: (
        "<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{dump(args)}<|tool_call_end|>"
            for i, (name, args) in enumerate(calls)
        )
        + "<|tool_calls_section_end|>"
    ),
    "qwen3_coder": lines(qwen_call),
    "step3p5": lines(qwen_call),
    "seed_oss": lambda calls: "\n".join(map(qwen_call, calls)).replace("tool_call>", "seed:tool_call>"),
    "glm45": lines(glm_call),
    "minimax_m2": lambda calls: (
        "<minimax:tool_call>\n" + "".join(map(minimax_call, calls)) + "</minimax:tool_call>"
    ),
    "pythonic": lambda calls: f"[{', '.join(map(python_call, calls))}]",
    "lfm2": lambda calls: f"<|tool_call_start|>[{', '.join(map(python_call, calls))}]<|tool_call_end|>",
    "olmo3": lambda calls: "<function_calls>\n" + "\n".join(map(python_call, calls)) + "\n</function_calls>",
    "llama4_pythonic": lambda calls: f"<|python_start|>[{', '.join(map(python_call, calls))}]<|python_end|>",
}

# What is odd: by tool parser.
ODD: dict[str, list[str]] = {
    "hermes": [
        "No call <tool",
        "Ok. <tool_call>no call</tool_call>",
        '<tool_call>{"name": "noop"}</tool_call>',
        '<tool_call>{"arguments": {"a": 1}, "name": "noop"}</tool_call>',
        '<tool_call>{"name": "noop", "arguments": {"a": }}</tool_call>',
        '<tool_call>{"name": "noop", "arguments": "{\\"a\\": 1}"}</tool_call>',
        '<tool_call>{"name": "noop", "arguments": {"a": 1}}',
        '<tool_call>{"name": "noop", "arguments": {"a": 1',
        '<tool_call>{"name": "noop", "arguments": {}}</tool_call> Done.',
        '<tool_call>{"name": "noop", "arguments": {"a": "\\u00e9\\ud83d\\ude00"}}</tool_call>',
    ],
    "llama3_json": [
        '{"answer": 42}',
        "{not json}",
        '{"name": "noop"}',
        'I call {"name": "noop", "parameters": {}}',
        '{"name": "noop", "parameters": {}} {"name": "noop", "parameters": {"a": 1}}',
        '{"name": "noop", "parameters": {"a": ',
    ],
    "pythonic": [
        "[1, 2]",
        "[noop()] and more",
        "I call [noop()]",
        "[get_weather(city='x', days=)]",
        "[get_weather(where={'a': [1, None, True]}, tags=[])]",
        "[get_weather(city='x'",
        "[get_weather(exact=true, city=null)]",
        "[geo.get_weather(city='''x''')]",
    ],
    "qwen3_coder": [
        "<tool_call>\n<function=noop>\n</function>\n</tool_call>\nDone.",
        "<function=get_weather>\n<parameter=days>\n3\n</parameter>\n</function>",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nx\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
        "<tool_call>\n<function=get_weather>\n<parameter=days>\nthree\n</parameter>\n"
        "<parameter=unknown>\n4\n</parameter>\n</function>\n</tool_call>",
        "a < b > c",
    ],
    "mistral": ["No call", "[TOOL_CALLS]noop", '[TOOL_CALLS]noop{"a": 1'],
    "deepseek_v31": ["No call <｜tool", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>"],
    "kimi_k2": ["No call <|tool"],
    "glm45": ["<tool_call>noop</tool_call>", "No call"],
}

REASONING: dict[str, list[str]] = {
    "deepseek_r1": [
        "<think>\nHm.\n</think>\n\nYes.",
        "Hm.</think>Yes.",
        "Hm.",
        "<think>Hm.",
        "<think></think>",
        "Hm.</think>Yes.</think>No.",
    ],
    "granite": [
        "Here is my thought process: Hm. Here is my response: Yes.",
        "Here's my thought process: Hm. Here's my response: Yes.",
        "Yes.",
    ],
    "glm45": ["<think>\nHm.\n</think>\n\nYes.", "Hm.</think>Yes."],
    "kimi_k2": ["<think>Hm.</think>Yes.", "Hm.</think>Yes."],
    "qwen3": [
        "<think>\nHm.\n</think>\n\nYes.",
        "Hm.</think>Yes.",
        "Hm. <b>",
        "Hm. <tool_call>\n<function=noop>\n</function>\n</tool_call>",
    ],
    "seed_oss": ["<seed:think>Hm.</seed:think>Yes."],
    "step3p5": ["<think>Hm.</think>Yes.", "Hm.</think>Yes."],
    "step3": ["Hm.</think>Yes.", "Hm."],
}


# Reasoning, content and calls together: parsers by name, how their reasoning ends.
WHOLE: dict[str, tuple[str, str]] = {
    "qwen3": ("qwen3_coder", "</think>"),
    "seed_oss": ("seed_oss", "</seed:think>"),
    "glm45": ("glm45", "</think>"),
    "kimi_k2": ("kimi_k2", "</think>"),
    "minimax_m2": ("minimax_m2", "</think>"),
    "nemotron_v3": ("qwen3_coder", "</think>"),
    "deepseek_v4": ("deepseek_v4", "</think>"),
}


def whole_samples() -> Iterator[tuple[str, str, str]]:
    """Reasoning and tool parsers with answers."""
    for name, (tool_parser, end) in WHOLE.items():
        for calls in CALLS[1:3]:
            text = RENDER[tool_parser](calls)
            yield name, tool_parser, f"Hm. It\nis so.{end}{text}"
            yield name, tool_parser, f"\nHm.\n{end}\n\nLet me look.\n\n{text}"
            yield name, tool_parser, f"Hm. {text}"
        yield name, tool_parser, f"{end.replace('/', '')}Hm.{end}\n\nYes."
        yield name, tool_parser, "It goes on"


def tool_samples() -> Iterator[tuple[str, str]]:
    """Tool parsers with answers."""
    for name, render in RENDER.items():
        for calls in CALLS:
            yield name, render(calls)
        yield name, "Let me look.\n\n" + render(CALLS[0])
        for text in ODD.get(name, []):
            yield name, text
