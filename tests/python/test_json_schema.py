"""JSON Schema in structured_outputs, keyword by keyword: jsonschema says what fits.

Texts that the grammar of a schema lets through, taken at random, fit it. Of the examples, those that fit are
let through, and the others are not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
from quire import LLM, SamplingParams, _core
from quire.model_directory import resolve_model

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("QUIRE_BUILD_DIR", "build/default")
PROGRAM = BUILD / "tests/tools/quire_walks"
KEYWORDS = {keyword["name"]: keyword for keyword in _core.json_schema_keywords()}

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="built without a grammar library")


class Example(NamedTuple):
    schema: Any
    fits: list[Any]
    does_not: list[Any]


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}
OBJECT = {"type": "object"}

# For each keyword that is kept, or partly.
EXAMPLES: dict[str, list[Example]] = {
    "type": [
        Example({"type": "string"}, ["", "a b", 'q"u\\o\n\u00e9\u4e2d'], [1, None, ["a"]]),
        Example({"type": "integer"}, [0, -7, 123456789012], [1.5, "1", True]),
        Example({"type": "number"}, [0, -1.5, 2e10, 1.25e-3], ["1", None]),
        Example({"type": "boolean"}, [True, False], [0, None]),
        Example({"type": "null"}, [None], [0, False]),
        Example({"type": "array"}, [[], [1, "a", None], [[{}]]], [{}, "a"]),
        Example(OBJECT, [{}, {"a": 1, "b": {"c": []}}], [[], None]),
        Example({"type": ["integer", "null"]}, [3, None], ["a", 1.5]),
        Example({}, [1, "a", None, {"a": [True]}], []),
        Example(True, [1, [2]], []),
    ],
    "properties": [Example(PERSON, [{"name": "x"}, {"name": "x", "age": 3}], [{}, {"name": 3}, {"age": 1}])],
    "required": [Example({**PERSON, "required": ["name", "age"]}, [{"name": "", "age": 0}], [{"name": ""}])],
    "additionalProperties": [
        Example(
            {"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"a": 1}], [{"a": "b"}]
        ),
        Example({**PERSON, "additionalProperties": False}, [{"name": "a"}], [{"name": "a", "x": 1}]),
        Example({**PERSON, "additionalProperties": True}, [{"name": "a"}], [{"age": 1}]),
        Example({"additionalProperties": {"type": "null"}}, [{"x": None}], [{"x": 0}]),
    ],
    "unevaluatedProperties": [
        Example({"type": "object", "unevaluatedProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "b"}]),
        Example({**PERSON, "unevaluatedProperties": False}, [{"name": "a"}], [{"name": "a", "x": 1}]),
    ],
    "patternProperties": [
        Example(
            {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "integer"}}},
            [{}, {"x1": 1, "x2": 2}],
            [{"x1": "a"}],
        )
    ],
    "propertyNames": [
        Example({"type": "object", "propertyNames": {"pattern": "^[a-z]{2}$"}}, [{"ab": 1}], [{"a": 1}]),
        Example({"type": "object", "propertyNames": {"enum": ["p", "q"]}}, [{"p": 1}], [{"r": 1}]),
    ],
    "minProperties": [
        Example({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
        Example(
            {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2},
            [{"a": 1, "b": 2}, {"a": 1, "b": 1, "c": 3}],
            [{"a": 1}],
        ),
    ],
    "maxProperties": [
        Example({"type": "object", "maxProperties": 2}, [{}, {"a": 1, "b": 2}], [{"a": 1, "b": 2, "c": 3}]),
        Example(
            {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 2},
            [{"a": 1, "c": 2}],
            [{"a": 1, "b": 1, "c": 1}],
        ),
    ],
    "items": [
        Example({"type": "array", "items": {"type": "integer"}}, [[], [1, 2]], [["a"]]),
        Example({"type": "array", "items": False}, [[]], [[1]]),
        Example({"items": {"type": "null"}}, [[None]], [[1]]),
    ],
    "prefixItems": [
        Example(
            {"type": "array", "prefixItems": [{"type": "integer"}, True], "items": {"type": "string"}},
            [[1, None], [1, 2, "a"]],
            [["a", 1], [1, 2, 3]],
        )
    ],
    "unevaluatedItems": [Example({"type": "array", "unevaluatedItems": {"type": "null"}}, [[None]], [[1]])],
    "minItems": [Example({"type": "array", "minItems": 2}, [[1, 2], [1, 2, 3]], [[], [1]])],
    "maxItems": [
        Example({"type": "array", "items": {"type": "integer"}, "maxItems": 2}, [[], [1, 2]], [[1, 2, 3]])
    ],
    "uniqueItems": [Example({"type": "array", "uniqueItems": False}, [[1, 1]], [])],
    "minContains": [Example({"type": "array", "minContains": 2}, [[], [1]], [])],
    "maxContains": [Example({"type": "array", "maxContains": 0}, [[], [1]], [])],
    "minimum": [
        Example({"type": "integer", "minimum": -3}, [-3, 0, 1000], [-4]),
        Example({"type": "number", "minimum": 1.5}, [1.5, 2, 100.25], [1.25, -2]),
    ],
    "maximum": [
        Example({"type": "integer", "maximum": 12, "minimum": 0}, [0, 12], [13]),
        Example({"type": "number", "maximum": -0.5}, [-0.5, -7], [0, -0.25]),
    ],
    "exclusiveMinimum": [
        Example({"type": "integer", "exclusiveMinimum": 5}, [6, 50], [5, 4]),
        Example({"type": "number", "exclusiveMinimum": 0}, [0.5, 3], [0, -1]),
    ],
    "exclusiveMaximum": [
        Example({"type": "integer", "exclusiveMaximum": 5}, [4, -50], [5, 6]),
        Example({"type": "number", "exclusiveMaximum": 1, "minimum": 0}, [0, 0.5], [1, 1.5]),
    ],
    "multipleOf": [
        Example({"type": "integer", "multipleOf": 7}, [0, 7, 21], [8]),
        Example({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}, [0, 95], [101, 3]),
    ],
    "minLength": [Example({"type": "string", "minLength": 2}, ["ab", "\u4e2d\u6587!"], ["", "a", "\u4e2d"])],
    "maxLength": [
        Example({"type": "string", "maxLength": 3}, ["", "abc", "\U0001f600\u4e2d\u6587"], ["abcd"])
    ],
    "pattern": [
        Example({"type": "string", "pattern": "^[A-Z][a-z]+-[0-9]{2}$"}, ["Abc-01"], ["abc-01", "Abc-1"]),
        Example({"type": "string", "pattern": "^(a|b\\.)*c$"}, ["c", "ab.c"], ["abc"]),
    ],
    "format": [
        Example({"type": "string", "format": "date"}, ["2026-11-23"], [3]),
        Example({"type": "string", "format": "date-time"}, ["2026-11-23T10:00:00Z"], [3]),
        Example({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], [3]),
        Example({"type": "string", "format": "ipv4"}, ["127.0.0.1"], [3]),
        Example({"type": "string", "format": "email"}, ["a.b@example.org"], [3]),
        Example({"type": "string", "format": "colour"}, ["red"], [3]),
    ],
    "const": [
        Example({"const": "yes"}, ["yes"], ["no", 1]),
        Example({"const": 7, "type": "integer"}, [7], [8, "7"]),
        Example({"const": None}, [None], [0]),
    ],
    "enum": [Example({"enum": ["a", 1, None, True]}, ["a", 1, None, True], ["b", 2, False])],
    "anyOf": [
        Example(
            {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]}, [1, "ab"], ["abc", None]
        )
    ],
    "oneOf": [Example({"oneOf": [{"type": "integer"}, {"type": "string"}]}, [1, "a"], [None, [1]])],
    "allOf": [Example({"allOf": [{"type": "integer", "minimum": 1}]}, [1, 2], [0, "a"])],
    "$ref": [
        Example({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, [1], ["a"]),
        Example(
            {
                "type": "object",
                "properties": {
                    "v": {"type": "integer"},
                    "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
                },
                "required": ["v", "next"],
            },
            [{"v": 1, "next": {"v": 2, "next": None}}],
            [{"v": 1}, {"v": 1, "next": {"v": 2}}],
        ),
    ],
    "$defs": [
        Example(
            {"$defs": {"t": {"enum": ["l"]}}, "type": "array", "items": {"$ref": "#/$defs/t"}},
            [["l"]],
            [["m"]],
        )
    ],
    "definitions": [
        Example({"definitions": {"t": {"type": "null"}}, "$ref": "#/definitions/t"}, [None], [1])
    ],
    "$id": [Example({"$id": "https://example.org/s", "type": "integer"}, [1], ["a"])],
    "then": [Example({"then": {"type": "string"}, "type": "integer"}, [1], [1.5])],
    "else": [Example({"else": {"type": "string"}, "type": "integer"}, [1], [1.5])],
}
EXAMPLES["maximum"] += [
    Example({"type": "integer", "minimum": -12, "maximum": 345}, [5, 33, -12], [-13, 400]),
    Example({"type": "number", "minimum": 0.125, "maximum": 99.5}, [5, 33.25], [-13, 400]),
]

# What is refused, and the words of the complaint that tell where.
REFUSED: list[tuple[Any, str]] = [
    ({"contains": {"type": "integer"}, "type": "array"}, "#: contains"),
    ({"not": {"type": "integer"}}, "#: not"),
    ({"if": {"type": "integer"}, "then": {"minimum": 3}}, "#: if"),
    ({**PERSON, "dependentRequired": {"age": ["name"]}}, "#: dependentRequired"),
    ({**PERSON, "dependentSchemas": {"age": PERSON}}, "#: dependentSchemas"),
    ({"$dynamicRef": "#a"}, "#: $dynamicRef"),
    ({"$dynamicAnchor": "a"}, "#: $dynamicAnchor"),
    ({"$anchor": "a", "type": "null"}, "#: $anchor"),
    ({"$recursiveRef": "#"}, "#: $recursiveRef"),
    ({**PERSON, "dependencies": {}}, "#: dependencies"),
    ({"type": "array", "additionalItems": False}, "#: additionalItems"),
    ({"type": "array", "items": {"type": "array", "uniqueItems": True}}, "#/items: uniqueItems"),
    ({"type": "array", "items": [{"type": "null"}]}, "prefixItems"),
    ({"minimum": 3}, "#: minimum needs a type"),
    ({"properties": {"a": {"pattern": "x"}}}, "#/properties/a: pattern needs a type"),
    ({"required": ["a"], "items": True}, "need a type"),
    ({"type": "object", "required": ["a"]}, "required names 'a'"),
    ({"type": "string", "pattern": "a", "minLength": 2}, "minLength beside pattern"),
    ({"type": "string", "pattern": "a", "format": "date"}, "format beside pattern"),
    ({"type": "string", "format": "email", "maxLength": 2}, "maxLength beside format"),
    ({"items": {"type": "string", "pattern": 'a"b'}}, "#/items: pattern 'a\"b' may match a quote"),
    ({"type": "string", "pattern": "é."}, "#: pattern 'é.' may match a quote"),
    ({"type": "string", "format": "date", "minLength": 2}, "minLength"),
    ({"type": "number", "multipleOf": 0.1}, "multipleOf"),
    ({"type": "integer", "multipleOf": 3, "minimum": 1}, "multipleOf"),
    ({"anyOf": [{"type": "null"}], "type": "object"}, "type beside anyOf"),
    ({"$ref": "#/$defs/a", "$defs": {"a": True}, "minLength": 3}, "minLength beside $ref"),
    ({"enum": [1, 2], "minimum": 2}, "minimum beside enum"),
    ({"enum": [1, "a"], "type": "string"}, "enum has 1, which is not of type"),
    ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, "allOf of several"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"$ref": "https://example.org/other"}, "$ref 'https://example.org/other'"),
    ({"$ref": "#/$defs/none"}, "names nothing"),
    ({"$ref": "#/a~1b", "a/b": True}, "$ref"),
    ({**PERSON, "additionalProperties": {"type": "integer"}}, "additionalProperties beside properties"),
    ({**PERSON, "patternProperties": {"^a": True}}, "patternProperties"),
    (
        {"type": "object", "patternProperties": {"^a": {"type": "null"}, "b$": {"type": "string"}}},
        "patternProperties",
    ),
    ({**PERSON, "propertyNames": {"maxLength": 3}}, "propertyNames"),
    ({"type": "object", "minProperties": 2}, "minProperties"),
    ({"type": "object", "properties": {"a": {"$id": "b"}}}, "#/properties/a: $id"),
    ({"type": "thing"}, "#: type"),
    ({"type": []}, "type must name"),
    ({"properties": []}, "properties must be an object"),
    (False, "false lets nothing through"),
    ({"items": 3}, "#/items: must be a schema"),
    ("type", "must be a schema"),
]


def ask(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    done = subprocess.run(
        [PROGRAM, resolve_model("quire-demo"), "4096", "2"],
        input=lines,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def question(schema: object, **more: object) -> dict[str, Any]:
    return {"structured_outputs": {"json": json.dumps(schema)}, **more}


def test_the_table_has_every_keyword_of_the_draft() -> None:
    from jsonschema_specifications import REGISTRY

    base = "https://json-schema.org/draft/2020-12/meta/"
    for vocabulary in (
        "core", "applicator", "unevaluated", "validation", "meta-data", "format-annotation", "content",
    ):  # fmt: skip
        assert set(REGISTRY.contents(base + vocabulary)["properties"]) <= set(KEYWORDS)


def test_each_keyword_that_is_kept_has_examples_and_no_other() -> None:
    assert {name for name, keyword in KEYWORDS.items() if keyword["support"] in ("kept", "partly")} == set(
        EXAMPLES
    )
    refused = {name for name, keyword in KEYWORDS.items() if keyword["support"] == "refused"}
    assert all(any(f"#: {name}" == words for _, words in REFUSED) for name in refused)


@pytest.mark.parametrize("keyword", EXAMPLES)
def test_what_fits_is_let_through_and_nothing_else(keyword: str) -> None:
    examples = EXAMPLES[keyword]
    questions = []
    for number, (schema, fits, does_not) in enumerate(examples):
        validator = jsonschema.Draft202012Validator(schema)
        assert all(validator.is_valid(value) for value in fits)
        assert not any(validator.is_valid(value) for value in does_not)
        documents = [json.dumps(value, ensure_ascii=False) for value in [*fits, *does_not]]
        questions.append(question(schema, documents=documents, num_walks=25, max_tokens=120, seed=number))
    for (schema, fits, does_not), answer in zip(examples, ask(questions), strict=True):
        assert "error" not in answer, (schema, answer)
        expected = [True] * len(fits) + [False] * len(does_not)
        assert answer["accepted"] == expected, (schema, fits, does_not)
        ended = [walk["text"] for walk in answer["walks"] if walk["ended"]]
        assert len(ended) >= 5, schema
        assert not any("stuck" in walk for walk in answer["walks"]), schema
        for text in ended:
            jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)


def test_annotations_change_nothing() -> None:
    names = [name for name, keyword in KEYWORDS.items() if keyword["support"] == "annotation"]
    schema = {**PERSON, **dict.fromkeys(names, "x")}
    (answer,) = ask([question(schema, documents=['{"name": "a"}', '{"name": 1}'])])
    assert answer["accepted"] == [True, False]


@pytest.mark.parametrize(("schema", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_would_not_be_kept_to_is_refused_by_name_and_place(schema: object, words: str) -> None:
    (answer,) = ask([question(schema)])
    assert words in answer["error"], answer


def test_whitespace_may_be_forbidden() -> None:
    texts = ['{"name": "a", "age": 1}', '{"name":"a","age":1}', '{\n  "name": "a"\n}']
    free, tight = ask(
        [
            {"structured_outputs": {"json": PERSON, "disable_any_whitespace": forbidden}, "documents": texts}
            for forbidden in (False, True)
        ]
    )
    assert free["accepted"] == [True, True, True]
    assert tight["accepted"] == [True, False, False]


def test_properties_come_in_the_order_of_the_schema_however_it_is_given() -> None:
    schema = {
        "type": "object",
        "properties": {"z": {"type": "null"}, "a": {"type": "null"}},
        "required": ["z", "a"],
    }
    texts = ['{"z": null, "a": null}', '{"a": null, "z": null}']
    for given in (schema, json.dumps(schema)):
        (answer,) = ask([{"structured_outputs": {"json": given}, "documents": texts}])
        assert answer["accepted"] == [True, False]


def test_the_answers_of_a_model_fit() -> None:
    llm = LLM(max_model_len=512, kv_cache_memory_bytes=1 << 26)
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["cat", "dog"]},
            "legs": {"type": "integer", "minimum": 0, "maximum": 8},
            "friends": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
        },
        "required": ["name", "kind", "legs", "friends"],
    }
    for given in (schema, json.dumps(schema)):
        params = SamplingParams(
            temperature=1.5,
            n=8,
            max_tokens=200,
            seed=5,
            structured_outputs={"json": given, "disable_any_whitespace": True},
        )
        (output,) = llm.generate("The animal, in JSON:", params, use_tqdm=False)
        for completion in output.outputs:
            assert completion.finish_reason == "stop"
            jsonschema.validate(json.loads(completion.text), schema, cls=jsonschema.Draft202012Validator)


def test_the_page_has_the_table() -> None:
    command = [sys.executable, str(ROOT / "tools" / "structured_output_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
