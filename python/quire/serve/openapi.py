"""The OpenAPI description of bodies, made from the tables that they are read by."""

from __future__ import annotations

import json
import math
from typing import Any

from quire import _core

_TYPES: dict[str, dict[str, Any]] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "str": {"type": "string"},
    "list[str]": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    "list[int]": {"type": "array", "items": {"type": "integer"}},
    "dict[int, float]": {"type": "object", "additionalProperties": {"type": "number"}},
    "dict[str, typing.Any]": {"type": "object"},
    "StructuredOutputsParams": {"type": "object"},
    "bool | typing.Literal['never']": {"anyOf": [{"type": "boolean"}, {"const": "never"}]},
}


def _schema(field: dict[str, Any]) -> dict[str, Any]:
    schema = dict(_TYPES.get(field["type"].removesuffix(" | None"), {}))
    if schema.get("type") in ("integer", "number"):
        if math.isfinite(field["min"]):
            schema["exclusiveMinimum" if field["excludes_min"] else "minimum"] = field["min"]
        if math.isfinite(field["max"]):
            schema["maximum"] = field["max"]
    schema["description"] = field["doc"]
    return schema


def body_schema(route: _core.HttpRoute) -> dict[str, Any]:
    """JSON schema of a route's body."""
    structs = {"SamplingParams", "EngineRequest"}
    if route != _core.HttpRoute.COMPLETIONS:
        structs.add("ChatRequest")
    properties: dict[str, Any] = {
        field["name"]: _schema(field)
        for field in _core.request_fields()
        if field["struct"] in structs and field["set_by_clients"]
    }
    for name in _core.http_refused_fields(route):
        properties.pop(name, None)
    own = {name: {**json.loads(schema), "description": doc} for name, schema, doc in _core.http_fields(route)}
    properties.update(own)
    if "messages" in properties and "messages" not in own:
        properties["messages"] = {
            "type": "array",
            "items": {"type": "object", "required": ["role"], "properties": {"role": {"type": "string"}}},
            "description": properties["messages"]["description"],
        }
    return {
        "type": "object",
        "properties": {name: _or_null(properties[name]) for name in sorted(properties)},
        "required": _core.http_required_fields(route),
        "additionalProperties": False,
    }


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    """null leaves every field at its default."""
    description = schema.pop("description")
    return {"anyOf": [schema, {"type": "null"}], "description": description}


ERROR = {
    "description": "an error",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                        "properties": {
                            "message": {"type": "string"},
                            "type": {"type": "string"},
                            "param": {"type": ["string", "null"]},
                            "code": {"type": ["string", "null"]},
                        },
                    }
                },
            }
        }
    },
}


_ANTHROPIC_ERROR = {
    "description": "an error",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["type", "error"],
                "properties": {
                    "type": {"const": "error"},
                    "error": {
                        "type": "object",
                        "required": ["type", "message"],
                        "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
                    },
                },
            }
        }
    },
}


def operation(route: _core.HttpRoute) -> dict[str, Any]:
    """What FastAPI cannot see of a route."""
    is_anthropics = route in (_core.HttpRoute.MESSAGES, _core.HttpRoute.COUNT_TOKENS)
    error = _ANTHROPIC_ERROR if is_anthropics else ERROR
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": body_schema(route)}}},
        "responses": {str(status): error for status in (400, 401, 404, 413, 429, 500, 503)},
    }
