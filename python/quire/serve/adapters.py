"""A server's adapters: those that it begins with, and those that requests load and unload, as vLLM's do."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from quire import _core
from quire.async_llm import AsyncLLM
from quire.engine_operations import EngineOperations
from quire.lora import LoRARequest
from quire.serve.bodies import check_fields, given_flag, refusal
from quire.serve.config import ServeConfig
from quire.values import describe, path_value, text_value

_LOGGER = logging.getLogger("quire.serve")

_MAX_PATH_BYTES = 4096  # Linux's; links are followed in time that grows with the square of a path
_LOAD_FIELDS = ("lora_name", "lora_path", "load_inplace", "is_3d_lora_weight")
_UNLOAD_FIELDS = ("lora_name", "lora_int_id")
_FILES = ("adapter_config.json", "adapter_model.safetensors")


class Adapters:
    """Model names beside the model's own. What is wrong with a request is an ``HttpError``."""

    def __init__(self, llm: AsyncLLM, model_names: Sequence[str], config: ServeConfig) -> None:
        """Loads those of ``lora_modules``. Raises ValueError, naming it, for one that cannot be."""
        self._llm = llm
        self._model_names = model_names
        self._root = os.path.realpath(config.lora_root) if config.lora_root else ""
        self._paths: dict[str, str] = {}  # as requests gave them
        # One is read at a time, and who waits takes no thread.
        self._loading = asyncio.Lock()
        config.check_lora_modules(llm.config.enable_lora, model_names)
        for module in config.lora_requests():
            try:
                EngineOperations.add_lora(llm, module)  # AsyncLLM's is for a loop, which does not run yet
            except (ValueError, MemoryError) as error:
                raise ValueError(f"lora_modules: '{module.lora_name}' cannot be loaded: {error}") from None

    def paths(self) -> dict[str, str]:
        """Of each adapter where it is, as whoever loaded it said."""
        if not self._llm.config.enable_lora:
            return {}
        return {
            info.lora_name: self._paths.get(info.lora_name, info.lora_path) for info in self._llm.list_loras()
        }

    async def load(self, body: Mapping[str, Any]) -> str | _core.HttpError:
        """What a body of /v1/load_lora_adapter asks for. Returns what to say of it."""
        try:
            check_fields(body, _LOAD_FIELDS)
            name = _given_text(body, "lora_name", "what requests shall call the adapter")
            path = path_value("lora_path", _given_text(body, "lora_path", "a directory as PEFT saves them"))
            if len(path.encode()) > _MAX_PATH_BYTES:
                size = len(path.encode())
                raise ValueError(f"lora_path must have at most {_MAX_PATH_BYTES} bytes, got {size}")
            in_place = given_flag(body, "load_inplace")
            given_flag(body, "is_3d_lora_weight")  # the adapter's file says so itself
            self._check_is_enabled()
            if name in self._model_names:
                raise ValueError(f"lora_name '{name:.200}' is the model's own; choose another")
        except (ValueError, TypeError) as error:
            return _refusal(error)
        async with self._loading:
            is_there = name in self.paths()
            if is_there and not in_place:
                text = f"lora_name '{name:.200}' is loaded already; unload it first, or set load_inplace"
                return _refusal(ValueError(text))
            if not is_there:
                self._paths[name] = path
            is_loaded = False
            try:
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(None, self._load, name, path, in_place)
                is_loaded = True
                self._paths[name] = path
            except FileNotFoundError as error:
                return _core.HttpError(404, str(error), param="lora_path", code="adapter_not_found")
            except ValueError as error:
                return _refusal(error)
            except MemoryError as error:
                return _core.HttpError(503, str(error))
            finally:
                if not is_loaded and not is_there:
                    del self._paths[name]
        _LOGGER.info("adapter '%s' loaded", name)
        return f"Success: '{name}' is loaded."

    def _load(self, name: str, path: str, in_place: bool) -> None:
        directory = self._resolve(path)
        if not os.path.isdir(directory):
            raise FileNotFoundError(f"lora_path '{path:.200}' is no directory that there is")
        try:
            adapter = LoRARequest(name, lora_path=directory, load_inplace=in_place)
            EngineOperations.add_lora(self._llm, adapter)
        except (ValueError, MemoryError) as error:
            text = str(error).replace(directory, path)  # the root is nobody's business
            if isinstance(error, MemoryError):
                raise MemoryError(text) from None
            # A directory may be called "lora_", too.
            names_field = text.startswith(("lora_name ", "lora_path ", "lora_int_id "))
            raise ValueError(text if names_field else f"lora_path {text}") from None

    def _resolve(self, path: str) -> str:
        """The directory that a client means. Raises ValueError where it or a file of it is outside."""
        if not self._root:
            return path
        directory = os.path.realpath(os.path.join(self._root, path))
        for each in (directory, *(os.path.realpath(os.path.join(directory, name)) for name in _FILES)):
            if os.path.commonpath([self._root, each]) != self._root:
                raise ValueError(f"lora_path '{path:.200}' is not in the server's lora_root")
        return directory

    async def unload(self, body: Mapping[str, Any]) -> str | _core.HttpError:
        """What a body of /v1/unload_lora_adapter asks for. Returns what to say of it."""
        try:
            check_fields(body, _UNLOAD_FIELDS)
            name = _given_text(body, "lora_name", "the adapter's name")
            number = body.get("lora_int_id")  # the name says all
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                raise TypeError(f"lora_int_id must be an int, got {describe(number)}")
            self._check_is_enabled()
        except (ValueError, TypeError) as error:
            return _refusal(error)
        # In one go with what follows: another of that name may be about to be loaded. It waits for nothing.
        if not self._llm.remove_lora(name):
            text = f"lora_name '{name:.200}' is no adapter's; /v1/models lists those that there are"
            return _core.HttpError(404, text, param="lora_name", code="adapter_not_found")
        self._paths.pop(name, None)
        _LOGGER.info("adapter '%s' unloaded", name)
        return f"Success: '{name}' is unloaded."

    def _check_is_enabled(self) -> None:
        if not self._llm.config.enable_lora:
            raise ValueError("there are no adapters: start the server with --enable-lora")


def _given_text(body: Mapping[str, Any], name: str, meaning: str) -> str:
    value = body.get(name)
    if value is None or value == "":
        raise ValueError(f"{name} is missing; give {meaning}")
    return text_value(name, value)


def _refusal(error: Exception) -> _core.HttpError:
    return refusal(error, {*_LOAD_FIELDS, *_UNLOAD_FIELDS})
