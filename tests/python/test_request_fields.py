"""Every field of a request, by its table, through Python's door. No field is named here."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quire import LLM, LLMEngine, SamplingParams, StructuredOutputsParams, _core
from quire.serve.openapi import body_schema

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "request_fields.md").read_text()
Described = dict[str, Any]
FIELDS: list[Described] = _core.request_fields()


def of(owner: str) -> list[Described]:
    return [field for field in FIELDS if field["struct"] == owner]


def test_fields_of_conversations_are_arguments_and_documented() -> None:
    arguments = inspect.signature(LLM.chat).parameters
    in_bodies = body_schema(_core.HttpRoute.CHAT_COMPLETIONS)["properties"]
    page = (ROOT / "model_repository" / "README.md").read_text().partition("## Conversations")[2]
    for field in of("ChatRequest"):
        assert field["name"] in arguments
        assert field["name"] in in_bodies
        assert f"`{field['name']}`" in page


def sample(field: Described) -> Any:
    """A value that is not the default, and within the range."""
    default = field["default"]
    kind = field["type"].removesuffix(" | None")
    number = 0 if default is None else default
    match kind:
        case "bool":
            return not default
        case "int":
            return number + 3 if number + 3 <= field["max"] else number - 1
        case "float":
            return number + 0.25 if number + 0.25 <= field["max"] else number - 0.25
        case "str":
            return "a b"
        case "list[str]":
            return ["a", "b"]
        case "list[int]":
            return [4, 5]
        case "dict[int, float]":
            return {7: 1.5}
        case "StructuredOutputsParams":
            return StructuredOutputsParams(choice=["a", "b"])
        case "dict[str, typing.Any]":
            return {"a": [1, {"b": None}]}
        case "RequestOutputKind":
            return _core.RequestOutputKind.DELTA
        case "bool | typing.Literal['never']":
            return "never"
    raise AssertionError(f"no sample of {kind}")


def given(field: Described, value: object) -> dict[str, Any]:
    return {field["name"]: value}


def outside(field: Described) -> list[Any]:
    """Values just outside the range."""
    kind = field["type"].removesuffix(" | None")
    if kind == "dict[int, float]":
        return [{-1: 0.0}, *({5: value} for value in outside({**field, "type": "float"}))]
    if kind == "dict[str, typing.Any]":
        return []
    if kind == "list[int]":
        return [[-1]]
    if kind == "list[str]":
        return [["a", ""]]
    if field["type"].startswith("StructuredOutputsParams"):
        return [{}, {"regex": "a", "json_object": True}]
    is_float = field["type"] == "float"
    values: list[Any] = [math.nan, math.inf] if is_float else []
    step: float = 0.125 if is_float else 1
    number = float if is_float else int
    if math.isfinite(field["min"]):
        values.append(number(field["min"] - (0 if field["excludes_min"] else step)))
    if math.isfinite(field["max"]):
        values.append(number(field["max"] + step))
    return values


@pytest.mark.parametrize("field", of("SamplingParams"), ids=lambda field: field["name"])
def test_a_sampling_field_is_an_argument_an_attribute_and_part_of_the_value(field: Described) -> None:
    name, value = field["name"], sample(field)
    assert getattr(SamplingParams(), name) == field["default"]
    params = SamplingParams(**given(field, value))
    assert getattr(params, name) == value
    assert params != SamplingParams()
    for same in (pickle.loads(pickle.dumps(params)), copy.copy(params), params.clone()):
        assert same == params
    assert f"{name}=" in repr(params)
    params = SamplingParams()
    setattr(params, name, value)
    assert getattr(params, name) == value
    assert getattr(SamplingParams, name).__doc__.endswith(field["doc"])


@pytest.mark.parametrize("field", of("SamplingParams"), ids=lambda field: field["name"])
def test_a_sampling_field_out_of_its_range_is_refused_by_name(field: Described) -> None:
    for value in outside(field):
        with pytest.raises(ValueError, match=rf"^{field['name']} ") as error:
            SamplingParams(**given(field, value))
        assert field["range"] in str(error.value) or "token id" in str(error.value)
    with pytest.raises(TypeError, match=rf"^{field['name']} must be "):
        SamplingParams(**given(field, object()))


@pytest.mark.parametrize("field", of("EngineRequest"), ids=lambda field: field["name"])
def test_a_field_of_the_request_is_an_argument(field: Described) -> None:
    name = field["name"]
    _core.EngineRequest("r", "prompt", SamplingParams(), **given(field, sample(field)))
    _core.EngineRequest("r", [1, 2], SamplingParams(), **given(field, None))
    with pytest.raises(TypeError, match=rf"^{name} must be "):
        _core.EngineRequest("r", "prompt", SamplingParams(), **given(field, object()))


ENGINE_REQUEST: str = _core.EngineRequest.__init__.__nb_signature__[0][0]  # type: ignore[attr-defined]


def keywords(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


def in_json(owner: str) -> set[str]:
    return {field["name"] for field in of(owner) if field["in_json"]}


# Where a request can come in, and what each of these doors knows of the fields, by their names. A field is at
# every door, or REASONS say why not. Of a door that is not there, None.
ON_THE_PAGE = set(re.findall(r"^\| `(\w+)`", PAGE, re.MULTILINE))
ON_HTTP = set(body_schema(_core.HttpRoute.COMPLETIONS)["properties"])
DOORS: dict[str, dict[str, set[str]]] = {
    "SamplingParams": {
        "C++": {field["name"] for field in of("SamplingParams")},  # the compiler counts the struct's members
        "SamplingParams(...)": keywords(SamplingParams),
        "SamplingParams.": {name for name in dir(SamplingParams) if not name.startswith("_")},
        "JSON": in_json("SamplingParams"),
        # By the functions that read JSON: EveryFieldIsAParameterAndASamplingParameter, a test of the adapter,
        # takes these tables through it.
        "Triton": in_json("SamplingParams"),
        "HTTP": ON_HTTP,
        "the page": ON_THE_PAGE,
    },
    "EngineRequest": {
        "C++": {field["name"] for field in of("EngineRequest")},
        "EngineRequest(...)": set(re.findall(r"(\w+):", ENGINE_REQUEST)),
        "LLM.generate": keywords(LLM.generate),
        "LLM.chat": keywords(LLM.chat),
        "LLM.stream": keywords(LLM.stream),
        "LLMEngine.add_request": keywords(LLMEngine.add_request),
        "JSON": in_json("EngineRequest"),
        "Triton": in_json("EngineRequest"),
        "HTTP": ON_HTTP,
        "the page": ON_THE_PAGE,
    },
}
REASONS = {
    ("JSON", "output_kind"): "how answers are sent is the business of the door that has the JSON",
    ("JSON", "queue_timeout_ms"): "the same of how long they may wait",
    ("HTTP", "output_kind"): "its field `stream` says it",
    ("HTTP", "queue_timeout_ms"): "how long they may wait is the server's business",
    ("Triton", "output_kind"): "its input `stream` says it",
    ("Triton", "queue_timeout_ms"): "its queue policy says it",
    **{
        (door, "lora_name"): "lora_request names an adapter, and says where it is, as vLLM's does"
        for door in ("LLM.generate", "LLM.chat", "LLM.stream", "LLMEngine.add_request")
    },
}


@pytest.mark.parametrize(
    ("door", "field"),
    [
        pytest.param(door, field, id=f"{door}-{field['name']}")
        for owner, doors in DOORS.items()
        for door in doors
        for field in of(owner)
    ],
)
def test_a_field_is_at_every_door_or_it_is_said_why_not(door: str, field: Described) -> None:
    is_there = field["name"] in DOORS[field["struct"]][door]
    assert is_there != ((door, field["name"]) in REASONS), REASONS.get((door, field["name"]), "it is missing")


def test_what_a_door_need_not_know_is_a_field_that_code_sets() -> None:
    """Clients set all others by their names, and only those: set_by_clients and the reasons agree."""
    for_clients = ("JSON", "HTTP", "Triton")
    assert {name for door, name in REASONS if door in for_clients} == {
        f["name"] for f in FIELDS if not f["set_by_clients"]
    }


def test_the_limit_that_a_field_names_is_the_engines(demo_model: Path) -> None:
    default = _core.EngineConfig(str(demo_model)).max_logprobs
    [doc] = [field["doc"] for field in FIELDS if field["name"] == "logprobs"]
    assert f"max_logprobs, {default} unless set" in doc


def test_the_page_of_fields_is_what_the_tables_say() -> None:
    command = [sys.executable, str(ROOT / "tools" / "request_fields.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
