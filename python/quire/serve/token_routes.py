"""``/tokenize`` and ``/detokenize``, with vLLM's fields. Their work may be done on any thread."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from quire import _core
from quire.async_llm import AsyncLLM
from quire.serve.answers import error_response
from quire.serve.bodies import check_fields, given_flag, parse_object, refusal
from quire.values import describe, text_value, to_json

# No text that a model takes has more for each token of max_model_len, but for runs of white space.
MAX_BYTES_PER_TOKEN = 16
_MAX_BYTES_IN_JSON = 6  # of one byte: \u0001
_MAX_BYTES_BESIDE = 64 << 10  # of the names of fields, and of what is no text

# Which model is the server's own affair: there is one, and one tokenizer of all its adapters.
_TEXT_FIELDS = ("model", "prompt", "add_special_tokens", "return_token_strs")
_TEMPLATE_FLAGS = ("add_generation_prompt", "continue_final_message")
_CHAT_ONLY_FIELDS = ("messages", "tools", *_TEMPLATE_FLAGS, "chat_template", "chat_template_kwargs")
_TOKENIZE_FIELDS = (*_TEXT_FIELDS, *_CHAT_ONLY_FIELDS)
_DETOKENIZE_FIELDS = ("model", "tokens")

# C code that makes so many items keeps other threads for about a millisecond.
_SLICE = 8192


class TokenRoutes:
    """Bodies to answers."""

    def __init__(self, llm: AsyncLLM, chat_template: str) -> None:
        self._llm = llm
        self._chat_template = chat_template

    @property
    def _max_text_bytes(self) -> int:
        return self._llm.model.max_model_len * MAX_BYTES_PER_TOKEN

    def tokenize(self, body: bytes) -> Response:
        max_bytes = self._max_text_bytes * _MAX_BYTES_IN_JSON + _MAX_BYTES_BESIDE
        if len(body) > max_bytes:
            text = f"the body has {len(body)} bytes; {self._of_model()} it may have at most {max_bytes}"
            return error_response(_core.HttpError(400, text))
        return _answer(body, self._tokenized, _TOKENIZE_FIELDS)

    def detokenize(self, body: bytes) -> Response:
        # What is far too much is not even parsed. Other fields have few commas.
        if body.count(b",") > self._llm.model.max_model_len + _SLICE:
            text = f"tokens has more ids than {self._of_model()} it may have: give fewer"
            return error_response(_core.HttpError(400, text, param="tokens"))
        return _answer(body, self._detokenized, _DETOKENIZE_FIELDS)

    def _of_model(self) -> str:
        return f"with max_model_len {self._llm.model.max_model_len}"

    def _tokenized(self, body: Mapping[str, Any]) -> bytes:
        is_chat = body.get("messages") is not None
        with_strings = given_flag(body, "return_token_strs")
        add_special_tokens = given_flag(body, "add_special_tokens", default=not is_chat)
        tokenizer = self._llm.get_tokenizer()
        if is_chat:
            text = self._rendered(body)
        else:
            for name in _CHAT_ONLY_FIELDS:
                if body.get(name) is not None:
                    raise ValueError(f"{name} goes with messages, which are missing; give both")
            if body.get("prompt") is None:
                raise ValueError("prompt is missing; give a text, or messages")
            text = text_value("prompt", body["prompt"])
        num_bytes = len(text.encode())
        if num_bytes > self._max_text_bytes:
            raise ValueError(
                f"{'messages' if is_chat else 'prompt'} has {num_bytes} bytes; {self._of_model()} and "
                f"{MAX_BYTES_PER_TOKEN} for each token it may have at most {self._max_text_bytes}"
            )
        ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
        parts = [
            b'{"count":%d,"max_model_len":%d,"tokens":' % (len(ids), self._llm.model.max_model_len),
            *_json_list(ids),
        ]
        if with_strings:
            strings = [tokenizer.decode([each], skip_special_tokens=False) for each in ids]
            parts += [b',"token_strs":', *_json_list(strings)]
        return b"".join((*parts, b"}"))

    def _rendered(self, body: Mapping[str, Any]) -> str:
        if body.get("prompt") is not None:
            raise ValueError("prompt and messages are two texts; give one of them")
        messages = body["messages"]
        if not isinstance(messages, list):
            raise TypeError(f"messages must be a list, got {describe(messages)}")
        options = body.get("chat_template_kwargs")
        if not isinstance(options, dict | None):
            raise TypeError(f"chat_template_kwargs must be an object, got {describe(options)}")
        flags = {name: given_flag(body, name) for name in _TEMPLATE_FLAGS if body.get(name) is not None}
        options = {**(options or {}), **flags}
        if body.get("tools") is not None:
            if not isinstance(body["tools"], list):
                raise TypeError(f"tools must be a list, got {describe(body['tools'])}")
            options["tools"] = body["tools"]
        template = body.get("chat_template")
        template = "" if template is None else text_value("chat_template", template)
        return self._llm.engine.apply_chat_template(
            to_json("messages", messages),
            to_json("chat_template_kwargs", options),
            template or self._chat_template,
        )

    def _detokenized(self, body: Mapping[str, Any]) -> bytes:
        tokens = body.get("tokens")
        if not isinstance(tokens, list):
            raise TypeError(f"tokens must be a list of token ids, got {describe(tokens)}")
        model = self._llm.model
        if len(tokens) > model.max_model_len:
            raise ValueError(
                f"tokens has {len(tokens)} ids; {self._of_model()} it may have at most {model.max_model_len}"
            )
        tokenizer = self._llm.get_tokenizer()
        # A model may have rows for more ids, which have no text, or for fewer than its tokenizer has.
        vocab_size = max(model.vocab_size, tokenizer.vocab_size)
        for i, each in enumerate(tokens):
            if isinstance(each, bool) or not isinstance(each, int):
                raise TypeError(f"tokens[{i}] must be an int, got {describe(each)}")
            if not 0 <= each < vocab_size:
                raise ValueError(f"tokens[{i}] is {describe(each)}; ids go from 0 to {vocab_size - 1}")
        detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
        texts = [detokenizer.append(tokens[i : i + _SLICE]) for i in range(0, len(tokens), _SLICE)]
        text = "".join((*texts, detokenizer.finish()))
        return json.dumps({"prompt": text}, ensure_ascii=False).encode()


def _answer(body: bytes, answer: Callable[[dict[str, Any]], bytes], fields: Sequence[str]) -> Response:
    value = parse_object(body)
    if isinstance(value, _core.HttpError):
        return error_response(value)
    try:
        check_fields(value, fields)
        if value.get("model") is not None:
            text_value("model", value["model"])
        return Response(answer(value), media_type="application/json")
    except (ValueError, TypeError) as error:
        return error_response(refusal(error, fields))


def _json_list(values: Sequence[int | str]) -> list[bytes]:
    slices = (values[i : i + _SLICE] for i in range(0, len(values), _SLICE))
    inner = [json.dumps(each, ensure_ascii=False)[1:-1].encode() for each in slices]
    return [b"[", b",".join(inner), b"]"]
