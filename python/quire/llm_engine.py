"""The engine for a host loop of one's own: it computes inside ``step`` and has no thread."""

from __future__ import annotations

from quire import _core
from quire._core import RequestOutput, SamplingParams
from quire.arguments import names_unknown
from quire.engine_operations import EngineOperations
from quire.lora import LoRARequest
from quire.prompts import Prompt, prompt_content
from quire.values import sampling_params_value, text_value


class LLMEngine(EngineOperations[_core.LLMEngine]):
    """``add_request``, then ``step`` until ``has_unfinished_requests`` is false.

    Takes what ``LLM`` takes. Safe to use from several threads: a call that comes during a step waits for its
    end, and each output goes to one of those who step.
    """

    _engine_class = _core.LLMEngine
    _waits_for_steps = True

    @names_unknown
    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        deadline_ms: int = 0,
        queue_timeout_ms: int = 0,
        user: str = "",
        add_special_tokens: bool = True,
        lora_request: LoRARequest | None = None,
    ) -> None:
        """Queues a request; its keywords are those of ``LLM.generate``.

        Raises ValueError if it cannot be run, and MemoryError if the queue is full or ``deadline_ms`` cannot
        be met; nothing has changed then.
        """
        self._engine.add_request(
            _core.EngineRequest(
                text_value("request_id", request_id),
                prompt_content(prompt),
                sampling_params_value(sampling_params, self.get_default_sampling_params),
                priority=priority,
                cache_salt=cache_salt,
                deadline_ms=deadline_ms,
                queue_timeout_ms=queue_timeout_ms,
                user=user,
                add_special_tokens=add_special_tokens,
                lora_name=self._lora_names(lora_request, 1)[0],
            )
        )

    def step(self) -> list[RequestOutput]:
        """Computes one step. Returns what is new or finished, perhaps nothing."""
        return self._engine.step()

    def abort_request(self, request_id: str) -> bool:
        """Ends a request; its last output comes from the next ``step``. False if it is not there."""
        return self._engine.abort_request(text_value("request_id", request_id))

    def has_unfinished_requests(self) -> bool:
        """Whether ``step`` has anything left to do or to return."""
        return self._engine.has_unfinished_requests()
