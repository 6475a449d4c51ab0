"""Adapters (LoRA), as requests give them and as an engine knows them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from quire.values import bool_value, describe, int32_value, path_value, text_value, values_for_each


@dataclass(frozen=True)
class LoRARequest:
    """An adapter and where it is: a directory as PEFT saves them.

    ``lora_name`` is what requests call it. ``lora_int_id`` is a number of the caller's that no other adapter
    has; 0: none. With ``load_inplace`` an adapter that has the name already is replaced by what its path has
    now, each time that this is given.

    Raises ValueError or TypeError, naming the field, for what no adapter has.
    """

    lora_name: str
    lora_int_id: int = 0
    lora_path: str | os.PathLike[str] = ""
    load_inplace: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lora_name", text_value("lora_name", self.lora_name))
        object.__setattr__(self, "lora_int_id", int32_value("lora_int_id", self.lora_int_id))
        object.__setattr__(self, "lora_path", path_value("lora_path", self.lora_path))
        bool_value("load_inplace", self.load_inplace)
        if not self.lora_name:
            raise ValueError("lora_name is empty; give the name that requests call the adapter")
        if self.lora_int_id < 0:
            raise ValueError(f"lora_int_id must be at least 1, or 0 for none, got {self.lora_int_id}")
        if not self.lora_path:
            raise ValueError("lora_path is empty; give a directory with adapter_config.json")


@dataclass(frozen=True)
class LoRAInfo:
    """What an engine knows of an adapter."""

    lora_name: str
    lora_int_id: int  # 0: none was given
    lora_path: str
    rank: int  # the highest of its modules
    is_loaded: bool  # in the host's memory; else it is read again when a request wants it
    is_pinned: bool  # it stays there
    num_requests: int  # unfinished ones that have it


def lora_request_value(value: object) -> LoRARequest | None:
    """One, or None for none. Raises TypeError for anything else."""
    if value is None or isinstance(value, LoRARequest):
        return value
    raise TypeError(f"lora_request must be a LoRARequest, got {describe(value)}")


def lora_request_list(value: object, num_prompts: int) -> list[LoRARequest | None]:
    """One for all prompts, or one for each, in their order."""
    return [lora_request_value(each) for each in values_for_each("lora_request", value, num_prompts)]
