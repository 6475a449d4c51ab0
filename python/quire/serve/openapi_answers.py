"""The OpenAPI description of answers: what FastAPI cannot see in routes that write bytes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from quire.serve.openapi import ERROR

_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_IDS: dict[str, Any] = {"type": "array", "items": _COUNT}
_TEXT_OR_NULL: dict[str, Any] = {"type": ["string", "null"]}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _completion(kind: str, **of_choice: Any) -> dict[str, Any]:
    choice = _object(" ".join(["index", *of_choice]), index=_COUNT, **of_choice)
    return _object(
        "id object created model choices usage",
        id=_TEXT,
        object={"const": kind},
        created=_COUNT,
        model=_TEXT,
        choices={"type": "array", "items": choice, "minItems": 1},
        usage=_object(
            "prompt_tokens completion_tokens total_tokens",
            prompt_tokens=_COUNT,
            completion_tokens=_COUNT,
            total_tokens=_COUNT,
        ),
    )


_MODEL = _object(
    "id object owned_by root parent",
    id=_TEXT,
    object={"const": "model"},
    owned_by=_TEXT,
    root=_TEXT,
    parent=_TEXT_OR_NULL,
)
_MODELS: dict[str, Any] = {"type": "array", "items": _MODEL}
_TOKENIZED = _object("count tokens max_model_len", count=_COUNT, tokens=_IDS, max_model_len=_COUNT)
_MESSAGE = _object("role content", role={"const": "assistant"}, content=_TEXT_OR_NULL)
_KINDS = {"type": "array", "items": _object("type", type=_TEXT)}
_ANTHROPICS_MESSAGE = _object(
    "id type role model content stop_reason stop_sequence usage",
    id=_TEXT,
    type={"const": "message"},
    role={"const": "assistant"},
    model=_TEXT,
    content=_KINDS,
    stop_reason=_TEXT,
    stop_sequence=_TEXT_OR_NULL,
    usage=_object("input_tokens output_tokens", input_tokens=_COUNT, output_tokens=_COUNT),
)
_RESPONSE = _object(
    "id object created_at status model output usage",
    id=_TEXT,
    object={"const": "response"},
    created_at=_COUNT,
    status={"enum": ["completed", "incomplete", "failed"]},
    model=_TEXT,
    output=_KINDS,
    usage=_object(
        "input_tokens output_tokens total_tokens",
        input_tokens=_COUNT,
        output_tokens=_COUNT,
        total_tokens=_COUNT,
    ),
)
_EVENTS: dict[str, Any] = {"text/event-stream": {}}
_NOTHING = "nothing"


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


# Of each route the content of its answer with status 200.
_ANSWERS: dict[str, dict[str, Any] | str] = {
    "/v1/completions": {
        **_json(_completion("text_completion", text=_TEXT, finish_reason=_TEXT_OR_NULL)),
        **_EVENTS,
    },
    "/v1/chat/completions": {
        **_json(_completion("chat.completion", message=_MESSAGE, finish_reason=_TEXT_OR_NULL)),
        **_EVENTS,
    },
    "/v1/messages": {**_json(_ANTHROPICS_MESSAGE), **_EVENTS},
    "/v1/messages/count_tokens": _json(_object("input_tokens", input_tokens=_COUNT)),
    "/v1/responses": {**_json(_RESPONSE), **_EVENTS},
    "/v1/models": _json(
        _object("object data", object={"const": "list"}, data={"type": "array", "items": _MODEL})
    ),
    "/v1/models/{model}": _json(_MODEL),
    "/tokenize": _json(_TOKENIZED),
    "/detokenize": _json(_object("prompt", prompt=_TEXT)),
    "/version": _json(_object("version", version=_TEXT)),
    "/is_sleeping": _json(_object("is_sleeping", is_sleeping={"type": "boolean"})),
    "/metrics": {"text/plain": {"schema": _TEXT}},
    "/v1/load_lora_adapter": {"text/plain": {"schema": _TEXT}},
    "/v1/unload_lora_adapter": {"text/plain": {"schema": _TEXT}},
    **dict.fromkeys(("/health", "/ping", "/ready"), _NOTHING),
    **dict.fromkeys(("/pause", "/resume", "/sleep", "/wake_up", "/reset_prefix_cache"), _NOTHING),
}
_HELLO = [{"role": "user", "content": "Who are you?"}]
_EXAMPLES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 8},
    "/v1/chat/completions": {"messages": _HELLO, "max_tokens": 8},
    "/v1/messages": {"messages": _HELLO, "max_tokens": 8},
    "/v1/messages/count_tokens": {"messages": _HELLO},
    "/v1/responses": {"input": "Who are you?", "max_output_tokens": 8},
    "/tokenize": {"prompt": "Once upon a time"},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/v1/load_lora_adapter": {"lora_name": "sql", "lora_path": "adapters/sql"},
    "/v1/unload_lora_adapter": {"lora_name": "sql"},
}
# Of the bodies that are read in Python.
_BODIES = {
    "/tokenize": _object(
        "",
        model=_TEXT,
        prompt=_TEXT,
        messages={"type": "array", "items": {"type": "object"}},
        tools={"type": "array", "items": {"type": "object"}},
        add_special_tokens={"type": "boolean"},
        add_generation_prompt={"type": "boolean"},
        continue_final_message={"type": "boolean"},
        chat_template=_TEXT,
        chat_template_kwargs={"type": "object"},
        return_token_strs={"type": "boolean"},
    ),
    "/detokenize": _object("tokens", model=_TEXT, tokens=_IDS),
    "/v1/load_lora_adapter": _object(
        "lora_name lora_path",
        lora_name=_TEXT,
        lora_path=_TEXT,
        load_inplace={"type": "boolean"},
        is_3d_lora_weight={"type": "boolean"},
    ),
    "/v1/unload_lora_adapter": _object("lora_name", lora_name=_TEXT, lora_int_id={"type": "integer"}),
}


def describe_answers(app: FastAPI) -> None:
    """Makes /openapi.json say what each route answers with; what a route says of itself stays."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            for path, operations in make()["paths"].items():
                for operation in operations.values():
                    _complete(path, operation)
        return dict(app.openapi_schema)

    app.openapi = openapi


def _complete(path: str, operation: dict[str, Any]) -> None:
    if path in _BODIES:
        operation["requestBody"] = {"required": True, "content": _json(_BODIES[path])}
    if path in _EXAMPLES:
        operation["requestBody"]["content"]["application/json"]["example"] = _EXAMPLES[path]
    responses = operation["responses"]
    responses.pop("422", None)  # FastAPI's own form; ours is an error like others
    answer = _ANSWERS.get(path)
    if answer == _NOTHING:
        responses["200"] = {"description": "done"}
    elif answer is not None:
        responses["200"] = {"description": "the answer", "content": answer}
    responses.setdefault("default", ERROR)
