"""Beam search: what is asked for, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from quire._core import Logprob, RequestOutput, SamplingParams, StructuredOutputsParams
from quire.values import describe


@dataclass
class BeamSearchParams:
    """How ``LLM.beam_search`` searches.

    ``beam_width`` sequences are kept; each answer has at most ``max_tokens`` tokens and ends with the
    model's end of sequence unless ``ignore_eos``. The score of an answer is its log-probability divided by
    its number of tokens to the power of ``length_penalty``. ``early_stopping`` is transformers': True ends
    the search as soon as ``beam_width`` answers have ended, False when better ones are unlikely, "never" when
    there can be none. ``include_stop_str_in_output`` keeps the end of sequence in the text.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    early_stopping: bool | Literal["never"] = False
    structured_outputs: StructuredOutputsParams | None = None  # vLLM's; anything else is refused

    def __post_init__(self) -> None:
        self.sampling_params()

    def sampling_params(self) -> SamplingParams:
        """The same as a request's parameters. Raises ValueError or TypeError for what no search can do."""
        if self.temperature != 0:
            raise ValueError(
                f"temperature must be 0, got {describe(self.temperature)}: a beam search does not sample"
            )
        return SamplingParams(
            temperature=0.0,
            beam_width=self.beam_width,
            n=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            structured_outputs=self.structured_outputs,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            include_stop_str_in_output=self.include_stop_str_in_output,
            logprobs=0,
        )


@dataclass
class BeamSearchSequence:
    """One answer. ``tokens`` and ``text`` begin with the prompt; ``logprobs`` are of the answer's tokens."""

    tokens: list[int]
    logprobs: list[Mapping[int, Logprob]]
    cum_logprob: float
    score: float
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class BeamSearchOutput:
    """The answers to one prompt, the best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


def beam_search_output(
    output: RequestOutput, prompt: str, length_penalty: float, name: str = "a prompt"
) -> BeamSearchOutput:
    """What the engine found for a prompt, whose text is ``prompt``. Raises RuntimeError with its ``name``."""
    sequences = []
    for completion in output.outputs:
        if completion.error:
            raise RuntimeError(f"the beam search of {name} failed: {completion.error}")
        logprob = completion.cumulative_logprob or 0.0
        sequences.append(
            BeamSearchSequence(
                tokens=[*output.prompt_token_ids, *completion.token_ids],
                logprobs=list(completion.logprobs or []),
                cum_logprob=logprob,
                score=logprob / max(len(completion.token_ids), 1) ** length_penalty,
                text=prompt + completion.text,
                finish_reason=completion.finish_reason,
                stop_reason=completion.stop_reason,
            )
        )
    return BeamSearchOutput(sequences)
