"""What answers requests: an HTTP server, a Triton server, or an engine in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.bench.outcomes import BenchRequest, Outcome

TARGETS = ("openai", "triton", "engine")


@dataclass(frozen=True)
class TargetConfig:
    """Where a target is and what each request says, beside its prompt; goes to the processes of clients."""

    kind: str  # of TARGETS
    url: str = "http://127.0.0.1:8000"  # of triton: host:port of its gRPC service
    endpoint: str = "/v1/completions"
    model: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)  # temperature, ignore_eos, ... by name
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    keep_text: bool = False
    timeout_s: float = 3600.0  # an answer that takes longer has failed


class Target(Protocol):
    """Of one event loop."""

    def prepare(self, request: BenchRequest) -> Any:
        """What ``send`` takes: work that is done before time is measured."""

    async def send(self, prepared: Any, outcome: Outcome) -> None:
        """Sends a request and fills in what becomes of it. Raises nothing but CancelledError."""

    async def close(self) -> None:
        """Ends connections."""


def sampling_of(request: BenchRequest, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of SamplingParams for a request, by name."""
    fields = {"max_tokens": request.output_len, **sampling}
    if request.schema is not None:
        fields["structured_outputs"] = {"json": request.schema}
    return fields
