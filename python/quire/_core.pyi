"""The engine, as it is in C++. Import `quire` instead."""

from collections.abc import Mapping, Sequence
import enum
import os
from typing import Any, Literal

import quire.arguments


def hold_threads() -> None:
    """
    Threads in the engine do not come back to Python from now on; for the end of the process.
    """

class RequestOutputKind(enum.Enum):
    """What a stream of outputs carries."""

    CUMULATIVE = 0
    """everything so far"""

    DELTA = 1
    """what is new"""

    FINAL_ONLY = 2
    """one output, at the end"""

class StructuredOutputsParams:
    """
    What an answer must look like. Give exactly one of json (a schema: text, a dict, or a pydantic model), regex,
    choice, grammar, json_object and structural_tag. Raises ValueError, naming the field, for anything else.
    """

    def __init__(self, *, json: str | dict[str, Any] | list[Any] | bool | type[Any] | None = None, regex: str | None = None, choice: Sequence[str] | None = None, grammar: str | None = None, json_object: bool | None = False, structural_tag: str | dict[str, Any] | list[Any] | bool | type[Any] | None = None, disable_any_whitespace: bool | None = False) -> None: ...

    @property
    def json(self) -> str | None:
        """a JSON schema that the answer fits"""

    @json.setter
    def json(self, value: str | dict[str, Any] | list[Any] | bool | type[Any] | None, /) -> None: ...

    @property
    def regex(self) -> str | None:
        """a regular expression that matches the whole answer"""

    @regex.setter
    def regex(self, value: str | None, /) -> None: ...

    @property
    def choice(self) -> list[str] | None:
        """the answer is one of these strings"""

    @choice.setter
    def choice(self, value: Sequence[str] | None, /) -> None: ...

    @property
    def grammar(self) -> str | None:
        """
        a grammar of the answer: EBNF whose root rule is root, or Lark whose root rule is start
        """

    @grammar.setter
    def grammar(self, value: str | None, /) -> None: ...

    @property
    def json_object(self) -> bool:
        """the answer is some JSON object"""

    @json_object.setter
    def json_object(self, value: bool, /) -> None: ...

    @property
    def structural_tag(self) -> str | None:
        """where in the answer which grammar holds: xgrammar's JSON"""

    @structural_tag.setter
    def structural_tag(self, value: str | dict[str, Any] | list[Any] | bool | type[Any] | None, /) -> None: ...

    @property
    def disable_any_whitespace(self) -> bool:
        """of JSON: no whitespace but a space after a comma or colon"""

    @disable_any_whitespace.setter
    def disable_any_whitespace(self, value: bool, /) -> None: ...

    def clone(self) -> StructuredOutputsParams:
        """An independent copy."""

    def copy(self) -> StructuredOutputsParams:
        """The same as clone()."""

    def __getstate__(self) -> dict[str, object]: ...

    def __setstate__(self, state: dict[str, object], /) -> None: ...

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    __signature__: quire.arguments.SignatureOf = ...

class SamplingParams:
    """
    How the next token is chosen, when to stop, and what to report.

    temperature 0 is greedy. top_k 0 (or -1) keeps all tokens. max_tokens None: as many as max_model_len
    leaves; any other None leaves the default. Raises ValueError, naming the field, for a value out of
    range, and TypeError for one of another type or a name that is none.
    """

    def __init__(self, *, temperature: float | None = 1.0, top_k: int | None = 0, top_p: float | None = 1.0, min_p: float | None = 0.0, presence_penalty: float | None = 0.0, frequency_penalty: float | None = 0.0, repetition_penalty: float | None = 1.0, logit_bias: Mapping[int, float] | None = {}, allowed_token_ids: Sequence[int] | None = None, bad_words: str | Sequence[str] | None = [], extra_args: Mapping[str, Any] | None = {}, seed: int | None = None, structured_outputs: StructuredOutputsParams | dict[str, Any] | None = None, beam_width: int | None = 1, length_penalty: float | None = 1.0, early_stopping: bool | Literal['never'] | None = False, max_tokens: int | None = 16, min_tokens: int | None = 0, max_thinking_tokens: int | None = None, stop: str | Sequence[str] | None = [], stop_token_ids: Sequence[int] | None = [], ignore_eos: bool | None = False, include_stop_str_in_output: bool | None = False, n: int | None = 1, logprobs: int | None = None, logprob_token_ids: Sequence[int] | None = [], prompt_logprobs: int | None = None, detokenize: bool | None = True, skip_special_tokens: bool | None = True, spaces_between_special_tokens: bool | None = True, truncate_prompt_tokens: int | None = None, output_kind: RequestOutputKind | None = RequestOutputKind.CUMULATIVE) -> None: ...

    @property
    def temperature(self) -> float:
        """
        divides the logits; 0 is greedy: the likeliest token, the lowest id among equals
        """

    @temperature.setter
    def temperature(self, value: float, /) -> None: ...

    @property
    def top_k(self) -> int:
        """keeps the k likeliest tokens"""

    @top_k.setter
    def top_k(self, value: int, /) -> None: ...

    @property
    def top_p(self) -> float:
        """keeps the smallest set of tokens with at least this probability"""

    @top_p.setter
    def top_p(self, value: float, /) -> None: ...

    @property
    def min_p(self) -> float:
        """before those, drops tokens below min_p times the likeliest one"""

    @min_p.setter
    def min_p(self, value: float, /) -> None: ...

    @property
    def presence_penalty(self) -> float:
        """is subtracted once from the logit of each token already generated"""

    @presence_penalty.setter
    def presence_penalty(self, value: float, /) -> None: ...

    @property
    def frequency_penalty(self) -> float:
        """is subtracted for each time a token was generated"""

    @frequency_penalty.setter
    def frequency_penalty(self, value: float, /) -> None: ...

    @property
    def repetition_penalty(self) -> float:
        """
        divides (or multiplies) the logits of tokens seen, the prompt's included
        """

    @repetition_penalty.setter
    def repetition_penalty(self, value: float, /) -> None: ...

    @property
    def logit_bias(self) -> dict[int, float]:
        """from token ids to what is added to their logits"""

    @logit_bias.setter
    def logit_bias(self, value: Mapping[int, float] | None, /) -> None: ...

    @property
    def allowed_token_ids(self) -> list[int] | None:
        """only these tokens are chosen; log-probabilities stay those of all"""

    @allowed_token_ids.setter
    def allowed_token_ids(self, value: Sequence[int] | None, /) -> None: ...

    @property
    def bad_words(self) -> list[str]:
        """
        texts whose tokens, with or without a blank before them, do not follow each other; others may spell them
        """

    @bad_words.setter
    def bad_words(self, value: str | Sequence[str] | None, /) -> None: ...

    @property
    def extra_args(self) -> dict[str, Any]:
        """what the engine's logits processors read"""

    @extra_args.setter
    def extra_args(self, value: Mapping[str, Any] | None, /) -> None: ...

    @property
    def seed(self) -> int | None:
        """the same seed gives the same tokens; without one it is drawn afresh"""

    @seed.setter
    def seed(self, value: int | None, /) -> None: ...

    @property
    def structured_outputs(self) -> StructuredOutputsParams | None:
        """
        what the answer must look like: a JSON schema, a regular expression, a grammar
        """

    @structured_outputs.setter
    def structured_outputs(self, value: StructuredOutputsParams | dict[str, Any] | None, /) -> None: ...

    @property
    def beam_width(self) -> int:
        """
        above 1: searches for the likeliest answers with this many beams, as transformers does, and gives the n best, in order, all at the end
        """

    @beam_width.setter
    def beam_width(self, value: int, /) -> None: ...

    @property
    def length_penalty(self) -> float:
        """
        of a beam search: an answer's score is its log-probability divided by its length to this power
        """

    @length_penalty.setter
    def length_penalty(self, value: float, /) -> None: ...

    @property
    def early_stopping(self) -> bool | Literal['never']:
        """
        of a beam search: true ends it as soon as beam_width answers have ended, false when better ones are unlikely, "never" when there can be none
        """

    @early_stopping.setter
    def early_stopping(self, value: bool | Literal['never'], /) -> None: ...

    @property
    def max_tokens(self) -> int | None:
        """ends the answer; capped by what max_model_len leaves"""

    @max_tokens.setter
    def max_tokens(self, value: int | None, /) -> None: ...

    @property
    def min_tokens(self) -> int:
        """no stop token before this many; at most max_tokens"""

    @min_tokens.setter
    def min_tokens(self, value: int, /) -> None: ...

    @property
    def max_thinking_tokens(self) -> int | None:
        """
        ends a reasoning block after this many tokens; needs the engine's think_end_token_ids
        """

    @max_thinking_tokens.setter
    def max_thinking_tokens(self, value: int | None, /) -> None: ...

    @property
    def stop(self) -> list[str]:
        """ends the answer when its text contains one of these strings"""

    @stop.setter
    def stop(self, value: str | Sequence[str] | None, /) -> None: ...

    @property
    def stop_token_ids(self) -> list[int]:
        """ends the answer after one of these token ids"""

    @stop_token_ids.setter
    def stop_token_ids(self, value: Sequence[int] | None, /) -> None: ...

    @property
    def ignore_eos(self) -> bool:
        """goes on past the model's end-of-sequence tokens"""

    @ignore_eos.setter
    def ignore_eos(self, value: bool, /) -> None: ...

    @property
    def include_stop_str_in_output(self) -> bool:
        """keeps what ended the answer in its text"""

    @include_stop_str_in_output.setter
    def include_stop_str_in_output(self, value: bool, /) -> None: ...

    @property
    def n(self) -> int:
        """completions of one prompt"""

    @n.setter
    def n(self, value: int, /) -> None: ...

    @property
    def logprobs(self) -> int | None:
        """
        reports log-probabilities of the chosen and this many likeliest tokens, at most the engine's max_logprobs, 20 unless set; true is 1, false is none
        """

    @logprobs.setter
    def logprobs(self, value: int | None, /) -> None: ...

    @property
    def logprob_token_ids(self) -> list[int]:
        """reports log-probabilities of the chosen and of exactly these tokens"""

    @logprob_token_ids.setter
    def logprob_token_ids(self, value: Sequence[int] | None, /) -> None: ...

    @property
    def prompt_logprobs(self) -> int | None:
        """
        reports log-probabilities of each prompt token and this many likeliest ones in its place, at most the engine's max_logprobs; such a prompt is computed whole, whatever is cached; true is 1, false is none
        """

    @prompt_logprobs.setter
    def prompt_logprobs(self, value: int | None, /) -> None: ...

    @property
    def detokenize(self) -> bool:
        """false: token ids only"""

    @detokenize.setter
    def detokenize(self, value: bool, /) -> None: ...

    @property
    def skip_special_tokens(self) -> bool:
        """leaves special tokens out of the text"""

    @skip_special_tokens.setter
    def skip_special_tokens(self, value: bool, /) -> None: ...

    @property
    def spaces_between_special_tokens(self) -> bool:
        """
        the same text either way: what stands between tokens is what the decoder of tokenizer.json writes
        """

    @spaces_between_special_tokens.setter
    def spaces_between_special_tokens(self, value: bool, /) -> None: ...

    @property
    def truncate_prompt_tokens(self) -> int | None:
        """
        keeps the last tokens of the prompt, BOS counted like any; -1 as many as max_model_len leaves for one more
        """

    @truncate_prompt_tokens.setter
    def truncate_prompt_tokens(self, value: int | None, /) -> None: ...

    @property
    def output_kind(self) -> RequestOutputKind:
        """what a stream of outputs carries"""

    @output_kind.setter
    def output_kind(self, value: RequestOutputKind, /) -> None: ...

    def clone(self) -> SamplingParams:
        """An independent copy."""

    def copy(self) -> SamplingParams:
        """The same as clone()."""

    def __getstate__(self) -> dict[str, object]: ...

    def __setstate__(self, state: dict[str, object], /) -> None: ...

    def __repr__(self) -> str: ...

    def __eq__(self, other: object, /) -> bool: ...

    __signature__: quire.arguments.SignatureOf = ...

class LogitsProcessorConfig:
    """What a logits processor is made for."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def think_start_token_ids(self) -> list[int]: ...

    @property
    def think_end_token_ids(self) -> list[int]: ...

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def __getstate__(self) -> tuple[int, list[int], list[int], int, int]: ...

    def __setstate__(self, arg: tuple[int, Sequence[int], Sequence[int], int, int], /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

def let_go_of_processors() -> None:
    """
    Python's logits processors are forgotten: for the end of the process, when no engine runs any more.
    """

class PrometheusFamily:
    """
    A family of a server's own, made by PrometheusMetrics.add_family. `labels` are the values of its labels, in their order. Thread-safe. ValueError, naming the family, for another number of labels and for a call that is not its kind's.
    """

    @property
    def name(self) -> str: ...

    def add(self, labels: Sequence[str] = [], amount: float = 1.0) -> None:
        """A counter grows; a gauge changes, up or down."""

    def set(self, labels: Sequence[str], value: float) -> None:
        """Of a gauge."""

    def observe(self, labels: Sequence[str], value: float) -> None:
        """Of a histogram."""

class PrometheusMetrics:
    """
    What an engine measures, and what a server adds to it, for Prometheus to scrape: give it to one engine (``metric_sink=``), and serve ``render()`` with the type ``content_type``. Thread-safe. A second engine at the same time is refused with ValueError; counters go on with the engine after it.
    """

    def __init__(self, *, model_name: str, engine: str = '0', alias_vllm: bool = False, quire_names: bool = True) -> None:
        """
        ``model_name`` and ``engine`` are labels of what the engine measures. ``alias_vllm`` shows it under vLLM's names too, for dashboards made for those; without ``quire_names`` under them alone.
        """

    @property
    def content_type(self) -> str:
        """What an HTTP answer with the text says that it is."""

    def render(self) -> bytes:
        """All families as text, in the exposition format 0.0.4."""

    def add_family(self, kind: str, name: str, help: str, *, labels: Sequence[str] = [], buckets: Sequence[float] = [], max_series: int = 1000) -> PrometheusFamily:
        """
        A family that the server fills: ``kind`` is 'counter' (whose name ends in _total), 'gauge' or 'histogram' (with ``buckets``, ascending). ``labels`` are names. Of combinations of their values ``max_series`` are kept, and one more, 'other', for the rest. Raises ValueError for what cannot be.
        """

class KVArena:
    """Memory for the KV caches of several engines of this process."""

    def __init__(self, bytes: int) -> None: ...

class EngineConfig:
    """Everything an engine is told at start. None leaves a default."""

    def __init__(self, model: str | os.PathLike[str], *, revision: str | None = '', tokenizer: str | None = '', tokenizer_revision: str | None = '', download_dir: str | None = '', dtype: str | None = 'auto', load_format: str | None = 'auto', plugins: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = [], use_tqdm_on_load: bool | None = True, max_model_len: int | None = 0, skip_tokenizer_init: bool | None = False, device: str | None = 'auto', num_threads: int | None = 0, tensor_parallel_size: int | None = 1, gpu_memory_utilization: float | None = 0.9, gpu_memory_bytes: int | None = 0, enforce_eager: bool | None = False, disable_cascade_attn: bool | None = False, block_size: int | None = 16, kv_cache_memory_bytes: int | None = 0, num_gpu_blocks_override: int | None = 0, enable_prefix_caching: bool | None = True, prefix_caching_hash_seed: str | None = '', enable_kv_cache_events: bool | None = False, kv_connector: str | None = '', kv_connector_config: str | None = '', max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None, enable_chunked_prefill: bool | None = True, long_prefill_token_threshold: int | None = 0, max_num_partial_prefills: int | None = 0, max_long_partial_prefills: int | None = 0, scheduling_policy: str | None = 'fcfs', async_scheduling: bool | None = None, scheduler_reserve_full_isl: bool | None = True, watermark: float | None = 0.0, enable_lora: bool | None = False, max_loras: int | None = 1, max_lora_rank: int | None = 16, max_cpu_loras: int | None = 0, enable_lora_experts: bool | None = True, max_logprobs: int | None = 20, max_logprob_token_ids: int | None = 128, max_logit_bias: int | None = 1024, max_stop_token_ids: int | None = 128, max_stop_bytes: int | None = 65536, max_bad_words_bytes: int | None = 16384, max_extra_args_bytes: int | None = 65536, max_answer_logprobs: int | None = 16777216, max_structured_output_bytes: int | None = 1048576, structured_output_threads: int | None = 0, enable_in_reasoning: bool | None = False, num_jump_forward_tokens: int | None = 0, structured_output_cache_bytes: int | None = 536870912, max_queued_requests: int | None = 0, max_waiting_requests: int | None = 0, max_queued_tokens: int | None = 0, flight_recorder_bytes: int | None = 16777216, flight_recorder_minutes: float | None = 5.0, flight_recorder_dir: str | None = '', flight_recorder_signal: int | None = 0, exit_on_dead: bool | None = False, logits_processors: str | type[Any] | Sequence[str | type[Any]] | None = [], think_start_token_ids: Sequence[int] | None = [], think_end_token_ids: Sequence[int] | None = [], seed: int | None = None, generation_config: str | None = 'auto', override_generation_config: Mapping[str, Any] | None = {}, kv_arena: KVArena | None = None, metric_sink: PrometheusMetrics | None = None) -> None: ...

    @property
    def model(self) -> str:
        """
        a Hugging Face directory: config.json, *.safetensors, tokenizer.json; or a name on the hub, org/name or org/name@revision, from its local cache (what is not there yet, Python downloads)
        """

    def is_in_processor(self) -> bool:
        """
        Whether this thread is in a logits processor of an engine with this configuration.
        """

    @property
    def revision(self) -> str:
        """
        of a model that is a name on the hub: a branch, a tag or a commit; empty: main. A directory has none
        """

    @property
    def tokenizer(self) -> str:
        """
        a directory, or a name on the hub, whose tokenizer and chat template are used; empty: the model's
        """

    @property
    def tokenizer_revision(self) -> str:
        """
        of a tokenizer that is a name on the hub, or of the model's own where there is no tokenizer given
        """

    @property
    def download_dir(self) -> str:
        """
        where models of the hub are cached; empty: where huggingface_hub has them
        """

    @property
    def dtype(self) -> str:
        """
        of weights and activations; auto is the checkpoint's, but that float16 becomes bfloat16 on the CPU; float16 is for CUDA only
        """

    @property
    def load_format(self) -> str:
        """
        auto is packed weights where some suit, else safetensors; dummy is random weights, of the model's directory only config.json is read
        """

    @property
    def plugins(self) -> list[str]:
        """
        paths, with a '/', of libraries of models beside Quire's own (docs/adding_a_model.md); they are code, and stay loaded for the rest of the process
        """

    @property
    def use_tqdm_on_load(self) -> bool:
        """
        on a terminal, show how far the weights are loaded, where that takes a while
        """

    @property
    def max_model_len(self) -> int:
        """
        tokens of the longest sequence, prompt and output; 0: what the model's config says
        """

    @property
    def skip_tokenizer_init(self) -> bool:
        """token ids in and out only; tokenizer.json is not read"""

    @property
    def device(self) -> str:
        """
        auto (CUDA where this build and this machine have it), cpu, cuda (device 0) or cuda:N; with several ranks the first of their devices
        """

    @property
    def num_threads(self) -> int:
        """CPU threads that compute, per rank; 0: the cores this process may use"""

    @property
    def tensor_parallel_size(self) -> int:
        """
        ranks that share each layer: devices that follow each other and read each other's memory, or, on the CPU, threads of one process
        """

    @property
    def gpu_memory_utilization(self) -> float:
        """
        the part of each device's memory that weights, activations and KV cache may take together, less what others hold of that part; not used on the CPU
        """

    @property
    def gpu_memory_bytes(self) -> int:
        """exactly this much instead; 0: by gpu_memory_utilization"""

    @property
    def enforce_eager(self) -> bool:
        """no CUDA graphs: every kernel is launched by itself, which is slower"""

    @property
    def disable_cascade_attn(self) -> bool:
        """
        on a device, keys and values that requests share are read for each of them, not once for all
        """

    @property
    def block_size(self) -> int:
        """tokens a block of the KV cache"""

    @property
    def kv_cache_memory_bytes(self) -> int:
        """
        of the KV cache; 0: sized from the memory available (at most 4 GiB on the CPU)
        """

    @property
    def num_gpu_blocks_override(self) -> int:
        """
        the exact number of blocks instead, block 0 included; 0: sized by bytes
        """

    @property
    def enable_prefix_caching(self) -> bool:
        """prompts that begin alike share their keys and values"""

    @property
    def prefix_caching_hash_seed(self) -> str:
        """
        what the names of cached prefixes depend on besides their content; empty: drawn from the system, one for all engines of the process, so that no client can compute them. Processes that compare KV events, or share a connector's store, need the same text: a long one that only they know
        """

    @property
    def enable_kv_cache_events(self) -> bool:
        """collects what take_kv_events returns"""

    @property
    def kv_connector(self) -> str:
        """
        where keys and values beside the engine's own come from and go to: the name of a connector that was registered (kv_connector.h); empty: none
        """

    @property
    def kv_connector_config(self) -> str:
        """what the connector is told, its own affair: an address, a path"""

    @property
    def max_num_seqs(self) -> int | None:
        """
        requests running at once; without a value: 64 on the CPU, 1024 on a device of 70 GiB and more, else 256, and never more than max_num_batched_tokens or what the KV cache has blocks for
        """

    @property
    def max_num_batched_tokens(self) -> int | None:
        """
        tokens a step; without a value: 2048, or 8192 on a device of 70 GiB and more, at least max_num_seqs, and without chunked prefill max_model_len
        """

    @property
    def enable_chunked_prefill(self) -> bool:
        """false: a prompt is computed in one step or waits"""

    @property
    def long_prefill_token_threshold(self) -> int:
        """
        at most this many tokens of one request a step, and longer prompts are long; 0: no limit
        """

    @property
    def max_num_partial_prefills(self) -> int:
        """requests in the middle of their prompt at once; 0: no limit"""

    @property
    def max_long_partial_prefills(self) -> int:
        """
        long prompts in their middle at once: shorter ones overtake the rest; 0: no limit
        """

    @property
    def scheduling_policy(self) -> str:
        """
        who is first: fcfs; priority (a lower value, then arrival); cache_aware (the longest cached prefix of the oldest few); fair (the request's user who was served least)
        """

    @property
    def async_scheduling(self) -> bool | None:
        """
        schedules a step while the one before it runs; without a value: on for CUDA, off for the CPU
        """

    @property
    def scheduler_reserve_full_isl(self) -> bool:
        """a request starts only when its whole prompt would fit"""

    @property
    def watermark(self) -> float:
        """the part of the blocks that a new request must leave free"""

    @property
    def enable_lora(self) -> bool:
        """
        requests may name an adapter (LoRA) that computes with the model; without it adapters cost nothing
        """

    @property
    def max_loras(self) -> int:
        """different adapters that run at a time"""

    @property
    def max_lora_rank(self) -> int:
        """the highest rank that an adapter may have at any of its modules"""

    @property
    def max_cpu_loras(self) -> int:
        """
        adapters held in the host's memory; the one used least recently goes when another comes, and comes back from its directory when it is asked for; 0: as many as max_loras
        """

    @property
    def enable_lora_experts(self) -> bool:
        """
        adapters may change the experts of mixtures, for which a device then keeps room: max_loras times that of rank max_lora_rank at every expert
        """

    @property
    def max_logprobs(self) -> int:
        """
        the most that logprobs and prompt_logprobs may be; -1: the whole vocabulary
        """

    @property
    def max_logprob_token_ids(self) -> int:
        """token ids in logprob_token_ids"""

    @property
    def max_logit_bias(self) -> int:
        """token ids in logit_bias"""

    @property
    def max_stop_token_ids(self) -> int:
        """token ids in stop_token_ids"""

    @property
    def max_stop_bytes(self) -> int:
        """of all strings in stop together; the engine takes 28 times as much"""

    @property
    def max_bad_words_bytes(self) -> int:
        """
        of all strings in bad_words together; each is compared with the end of the answer for each token
        """

    @property
    def max_extra_args_bytes(self) -> int:
        """of extra_args as JSON"""

    @property
    def max_answer_logprobs(self) -> int:
        """
        log-probabilities in an answer, n x (logprobs, or the number of logprob_token_ids, + 1) x max_tokens, which take 12 bytes each; and, by themselves, those of a prompt
        """

    @property
    def max_structured_output_bytes(self) -> int:
        """of a schema, or another text that says what fits"""

    @property
    def structured_output_threads(self) -> int:
        """
        threads that compile grammars, and fill masks; 0: half the cores, at most 8
        """

    @property
    def enable_in_reasoning(self) -> bool:
        """
        with think_end_token_ids: holds answers to their grammars from the first token on, not from behind those, which an answer may never come to
        """

    @property
    def num_jump_forward_tokens(self) -> int:
        """
        at most this many tokens that a grammar forces are computed in the step of the one before them; 0: none. Answers stay the same. One step at a time is then under way
        """

    @property
    def structured_output_cache_bytes(self) -> int:
        """
        of compiled grammars that no request uses, and a quarter of it of what grammars have in common
        """

    @property
    def max_queued_requests(self) -> int:
        """refuses more than this many unfinished completions; 0: no limit"""

    @property
    def max_waiting_requests(self) -> int:
        """refuses what would have more completions wait to begin; 0: no limit"""

    @property
    def max_queued_tokens(self) -> int:
        """
        refuses what brings the prompts of unfinished completions above this many tokens; 0: no limit
        """

    @property
    def flight_recorder_bytes(self) -> int:
        """memory for the last steps' schedule; 0: off"""

    @property
    def flight_recorder_minutes(self) -> float:
        """what is older is dropped even when there is room"""

    @property
    def flight_recorder_dir(self) -> str:
        """where failures and signals leave recordings; empty: none"""

    @property
    def flight_recorder_signal(self) -> int:
        """this signal (SIGUSR2, say) writes a recording of every engine; 0: none"""

    @property
    def exit_on_dead(self) -> bool:
        """
        an Engine that has ended by a failure sends its process SIGTERM once its requests have been told, for whoever supervises it to start it anew: after a lost device only a new process works
        """

    @property
    def logits_processors(self) -> list[str]:
        """
        names of registered processors, and paths of plugin libraries, with a '/': logits_processor.h
        """

    @property
    def think_start_token_ids(self) -> list[int]:
        """
        what a reasoning block begins with, for max_thinking_tokens and num_reasoning_tokens; empty: there are none
        """

    @property
    def think_end_token_ids(self) -> list[int]:
        """what a reasoning block ends with"""

    @property
    def seed(self) -> int | None:
        """
        what requests that bring no seed get theirs from, in the order they come; absent: drawn from the system
        """

    @property
    def generation_config(self) -> str:
        """
        what default_sampling_params reads: auto is the model's own generation_config.json, vllm and none are no file, anything else is a directory that has one, or its path
        """

    @property
    def override_generation_config(self) -> dict[str, Any]:
        """keys of generation_config.json that count before the file's"""

    @property
    def kv_arena(self) -> KVArena | None:
        """memory shared with other engines, instead of kv_cache_memory_bytes"""

    @property
    def metric_sink(self) -> PrometheusMetrics | None:
        """told once a step what the engine measures; of one engine at a time"""

    __signature__: quire.arguments.SignatureOf = ...

def parse_hub_name(text: str) -> tuple[str, str, str] | None:
    """
    The name, the revision and the quantization, perhaps empty, of "org/name:quantization@revision"; None for what can be no such name.
    """

def find_cached_model(name: str, revision: str, quantization: str, files: str, download_dir: str) -> tuple[str, str]:
    """
    The directory or GGUF file of a model in the hub's cache, empty for none, and the first file that it lacks of those that are needed: "model", "tokenizer" or "config"; see quire/model_directory.h.
    """

def select_gguf_files(names: Sequence[str], quantization: str, repository: str) -> list[str]:
    """
    The files of a repository that are the GGUF file of a quantization, or its parts.
    """

def get_supported_archs() -> list[str]:
    """The architectures that engines can run; see quire/model_registry.h."""

def load_plugin(path: str) -> list[str]:
    """
    Loads a library of models, and returns the architectures that it brings.
    """

def build_info() -> dict[str, Any]:
    """What the extension was made of, and what of it this machine can use."""

def default_sampling_params(config: EngineConfig) -> SamplingParams:
    """
    What generation_config and override_generation_config of a configuration say; see quire/generation_config.h.
    """

def plan_memory(config: EngineConfig, device_name: str, device_memory: int) -> dict[str, Any]:
    """What an engine would take; see quire/memory_plan.h."""

def pack_weights(config: EngineConfig, directory: str) -> list[str]:
    """
    Writes packed weights to a directory, and returns the files' paths; see quire/weights.h.
    """

class KVCacheEventKind(enum.Enum):
    BLOCK_STORED = 0
    """Blocks can be found under their hashes."""

    BLOCK_REMOVED = 1
    """No block has that hash any more."""

    ALL_BLOCKS_CLEARED = 2
    """Nothing can be found."""

class KVCacheEvent:
    """What happened to cached prefixes; see quire/kv_events.h."""

    @property
    def kind(self) -> KVCacheEventKind: ...

    @property
    def group(self) -> int: ...

    @property
    def block_hashes(self) -> list[bytes]: ...

    @property
    def parent_block_hash(self) -> bytes: ...

    @property
    def token_ids(self) -> list[int]: ...

    @property
    def block_size(self) -> int: ...

    @property
    def lora_id(self) -> int:
        """The lora_int_id that the adapter was added with; 0: none."""

    @property
    def lora_name(self) -> str: ...

    @property
    def cache_salt(self) -> str: ...

    @property
    def kv_cache_spec_kind(self) -> str:
        """'full_attention', 'sliding_window', 'mla_attention' or 'mamba'."""

    @property
    def kv_cache_spec_sliding_window(self) -> int:
        """In tokens; 0: there is none."""

    def __getstate__(self) -> tuple[KVCacheEventKind, int, list[list[int]], list[int], list[int], int, int, str, str, str, int]: ...

    def __setstate__(self, arg: tuple[KVCacheEventKind, int, Sequence[Sequence[int]], Sequence[int], Sequence[int], int, int, str, str, str, int], /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Logprob:
    """
    A token's log-probability under the model, and its rank (1 is the likeliest).
    """

    @property
    def token_id(self) -> int: ...

    @property
    def logprob(self) -> float: ...

    @property
    def rank(self) -> int: ...

    def __getstate__(self) -> tuple[int, float, int]: ...

    def __setstate__(self, arg: tuple[int, float, int], /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class CompletionOutput:
    """One completion of a prompt."""

    @property
    def index(self) -> int: ...

    @property
    def text(self) -> str: ...

    @property
    def token_ids(self) -> list[int]: ...

    @property
    def cumulative_logprob(self) -> float | None: ...

    @property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        """One dictionary for each token, by token id; None unless asked for."""

    @property
    def finish_reason(self) -> str | None:
        """'stop', 'length', 'abort', 'error', or None while unfinished."""

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or stop token id that ended it, if one did."""

    @property
    def error(self) -> str: ...

    @property
    def num_reasoning_tokens(self) -> int:
        """
        Of all tokens so far, those inside a reasoning block (think_start_token_ids, think_end_token_ids).
        """

    def finished(self) -> bool: ...

    def __getstate__(self) -> tuple[int, str, list[int], float | None, list[list[Logprob]], int, str | int | None, str, int]: ...

    def __setstate__(self, arg: tuple[int, str, Sequence[int], float | None, Sequence[Sequence[Logprob]], int, str | int | None, str, int], /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class RequestMetrics:
    """
    When things happened to a request: seconds of time.monotonic(); 0 if they did not. Of several completions, the first and the last times.
    """

    @property
    def arrival_time(self) -> float:
        """It was validated and tokenized."""

    @property
    def first_scheduled_time(self) -> float:
        """Its first step was scheduled; known when that has given a token."""

    @property
    def first_token_time(self) -> float:
        """The step that gave its first token ended."""

    @property
    def last_token_time(self) -> float:
        """The step that gave its last token so far ended."""

    @property
    def num_generation_tokens(self) -> int:
        """Tokens generated so far, of all completions."""

    @property
    def mean_time_per_output_token(self) -> float:
        """
        Seconds from one token of a completion to its next one, on average; 0 when none has two.
        """

    @property
    def queued_time(self) -> float:
        """Seconds from arrival to the first step."""

    @property
    def prefill_time(self) -> float:
        """Seconds from the first step to the first token."""

    @property
    def first_token_latency(self) -> float:
        """Seconds from arrival to the first token."""

    @property
    def decode_time(self) -> float:
        """Seconds from the first token to the last one."""

    @property
    def inference_time(self) -> float:
        """Seconds from the first step to the last token."""

    def __getstate__(self) -> tuple[float, float, float, float, int, float]: ...

    def __setstate__(self, arg: tuple[float, float, float, float, int, float], /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class RequestUsage:
    """What a request has used so far, of all its completions."""

    @property
    def num_prompt_tokens(self) -> int:
        """Counted once, whatever n is."""

    @property
    def num_cached_tokens(self) -> int:
        """Of the prompt's, those whose keys and values were already there."""

    @property
    def num_generation_tokens(self) -> int: ...

    @property
    def num_reasoning_tokens(self) -> int:
        """Of the generated ones, those inside a reasoning block."""

    def __getstate__(self) -> tuple[int, int, int, int]: ...

    def __setstate__(self, arg: tuple[int, int, int, int], /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class RequestOutput:
    """What a request gave back."""

    @property
    def request_id(self) -> str: ...

    @property
    def prompt(self) -> str | None: ...

    @property
    def prompt_token_ids(self) -> list[int]: ...

    @property
    def prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """
        One dictionary for each prompt token, by token id, given the tokens before it: None for the first. None unless asked for, and until the first token came.
        """

    @property
    def outputs(self) -> list[CompletionOutput]: ...

    @property
    def finished(self) -> bool: ...

    @property
    def num_cached_tokens(self) -> int: ...

    @property
    def metrics(self) -> RequestMetrics: ...

    @property
    def usage(self) -> RequestUsage: ...

    def __getstate__(self) -> tuple[str, str | None, list[int], list[CompletionOutput], bool, int, RequestMetrics, list[list[Logprob]] | None, RequestUsage]: ...

    def __setstate__(self, arg: tuple[str, str | None, Sequence[int], Sequence[CompletionOutput], bool, int, RequestMetrics, Sequence[Sequence[Logprob]] | None, RequestUsage], /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class Detokenizer:
    """Token ids to text, as they arrive. A UTF-8 character is never split."""

    def append(self, ids: Sequence[int]) -> str:
        """The text that these ids completed."""

    def finish(self) -> str:
        """What is still held back. Call once, at the end."""

class Tokenizer:
    """A Hugging Face tokenizer.json, run in C++."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """
        Raises ValueError, naming file and key, for what is missing or not supported.
        """

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def encode_with_offsets(self, text: str, *, add_special_tokens: bool = True) -> tuple[list[int], list[tuple[int, int]]]:
        """
        The ids, and for each the part of the text that it stands for: text[begin:end], as in the offsets of `tokenizers`. Tokens that are not in the text have (0, 0).
        """

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer: ...

    def is_special(self, id: int) -> bool: ...

    @property
    def vocab_size(self) -> int: ...

    def id_to_token(self, id: int) -> str | None: ...

    def token_to_id(self, token: str) -> int | None: ...

class ChatTemplate:
    """A model directory's chat template, rendered in C++."""

    def __init__(self, directory: str) -> None:
        """
        Raises ValueError for a missing template or syntax that is not supported.
        """

    def render(self, messages: Sequence[Mapping[str, object]], **options: object) -> str:
        """
        Renders a conversation. Options: add_generation_prompt, tools, and what the template reads.
        """

class ToolCallDelta:
    """
    What is new of a tool call: id and name come once, arguments in pieces.
    """

    @property
    def index(self) -> int:
        """of the call in the answer"""

    @property
    def id(self) -> str:
        """in the first delta of the call, else empty"""

    @property
    def name(self) -> str:
        """in the first delta of the call, else empty"""

    @property
    def arguments(self) -> str:
        """
        joined they are the text of a JSON object, or the beginning of one when the answer ends within it
        """

    def __getstate__(self) -> tuple[int, str, str, str]: ...

    def __setstate__(self, arg: tuple[int, str, str, str], /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class ChatDelta:
    """What is new of an answer, or all of it. False when empty."""

    @property
    def reasoning(self) -> str:
        """what the model thought"""

    @property
    def content(self) -> str:
        """what it said"""

    @property
    def tool_calls(self) -> list[ToolCallDelta]:
        """one entry for each call, by index"""

    def __bool__(self) -> bool: ...

    def __getstate__(self) -> tuple[str, str, list[ToolCallDelta]]: ...

    def __setstate__(self, arg: tuple[str, str, Sequence[ToolCallDelta]], /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class ChatParser:
    """
    Splits one answer into reasoning, content and tool calls while it streams.

    reasoning_parser and tool_parser are vLLM's names. The joined deltas do not depend on how the text is cut. What is no valid call is content.
    """

    def __init__(self, *, reasoning_parser: str | None = None, tool_parser: str | None = None, tokenizer: Tokenizer | None = None, tools: Sequence[Mapping[str, object]] | None = None, parse_tool_calls: bool = True, enable_thinking: bool | None = None) -> None:
        """Arguments are ChatFormat's and ChatFormat.parser's."""

    def append(self, text: str, token_ids: Sequence[int] = ()) -> ChatDelta:
        """What the next text, and the next ids, make known. Either may be empty."""

    def finish(self) -> ChatDelta:
        """
        What was held back because it might have been the beginning of something. Call once, at the end.
        """

    @property
    def num_reasoning_tokens(self) -> int:
        """tokens of reasoning among the ids so far; 0 without a tokenizer"""

class ChatFormat:
    """
    How a model writes reasoning and tool calls. Made once, it parses many answers.
    """

    def __init__(self, *, reasoning_parser: str | None = None, tool_parser: str | None = None, tokenizer: Tokenizer | None = None) -> None:
        """
        With the model's tokenizer, special tokens that are not the format's own are taken out of the text, and tokens of reasoning are counted. Raises ValueError with the known names for one that is not known.
        """

    def parser(self, *, tools: Sequence[Mapping[str, object]] | None = None, parse_tool_calls: bool = True, enable_thinking: bool | None = None) -> ChatParser:
        """
        A parser for one answer. `tools` are the request's, as OpenAI's API has them; `enable_thinking` says whether the prompt leaves the model thinking (None: as the model's templates do).
        """

    def parse(self, text: str, *, tools: Sequence[Mapping[str, object]] | None = None, parse_tool_calls: bool = True, enable_thinking: bool | None = None) -> ChatDelta:
        """A whole answer at once."""

    @property
    def skip_special_tokens(self) -> bool:
        """
        what SamplingParams.skip_special_tokens must be for the text that is parsed
        """

    def structural_tag(self, tools: Sequence[Mapping[str, object]], *, name: str | None = None, parallel_tool_calls: bool = True, enable_thinking: bool | None = None) -> str:
        """
        A structural tag (JSON, as xgrammar reads it) under which the model calls these tools, or the one of that name, in this format.
        """

    @property
    def has_tool_parser(self) -> bool:
        """whether calls are parsed"""

    def thinks_after(self, prompt: str) -> bool | None:
        """
        For enable_thinking: whether this prompt, or its end, leaves the model thinking. None unless it ends with a marker of the format's, white space aside.
        """

    @staticmethod
    def reasoning_parsers() -> list[str]:
        """The names that are known."""

    @staticmethod
    def tool_parsers() -> list[str]:
        """The names that are known."""

def prepare_chat(engine: EngineBase, messages_json: str, tools_json: str, fields_json: str, sampling_params: SamplingParams, chat_format: ChatFormat) -> tuple[str, SamplingParams | None]:
    """
    A conversation's prompt and, where its tool_choice or its format changes them, other parameters. `tools_json` may be empty; `fields_json` is an object of ChatRequest's other fields.
    """

def chat_format_of(engine: EngineBase, reasoning_parser: str, tool_parser: str) -> ChatFormat:
    """A format with the engine's tokenizer."""

class EngineRequest:
    """
    A prompt, text or token ids, and how to continue it. An engine that it is given to uses it up.
    """

    def __init__(self, request_id: str, prompt: str | Sequence[int], sampling_params: SamplingParams, *, priority: int | None = 0, deadline_ms: int | None = 0, queue_timeout_ms: int | None = 0, user: str | None = '', cache_salt: str | None = '', add_special_tokens: bool | None = True, lora_name: str | None = '') -> None: ...

    @property
    def request_id(self) -> str: ...

class ModelDescription:
    """What was loaded."""

    @property
    def architecture(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def backend(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def eos_token_ids(self) -> list[int]: ...

    @property
    def memory(self) -> dict[str, int]:
        """Bytes that each rank has taken, or set aside; see quire/memory_plan.h."""

    def __getstate__(self) -> tuple[str, str, str, int, int, list[int], list[int]]: ...

    def __setstate__(self, arg: tuple[str, str, str, int, int, Sequence[int], Sequence[int]], /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class EngineStats:
    """Counters since the start, and the state after the last step."""

    @property
    def num_steps(self) -> int: ...

    @property
    def num_running_reqs(self) -> int: ...

    @property
    def num_waiting_reqs(self) -> int: ...

    @property
    def num_waiting_tokens(self) -> int: ...

    @property
    def num_free_blocks(self) -> int: ...

    @property
    def num_total_blocks(self) -> int: ...

    @property
    def kv_cache_usage(self) -> float: ...

    @property
    def kv_cache_waste(self) -> float: ...

    @property
    def num_preemptions(self) -> int: ...

    @property
    def num_full_graph_steps(self) -> int: ...

    @property
    def num_piecewise_graph_steps(self) -> int: ...

    @property
    def num_eager_steps(self) -> int: ...

    @property
    def num_expert_tokens(self) -> int: ...

    @property
    def expert_load_imbalance(self) -> float: ...

    @property
    def num_scheduled_tokens(self) -> int: ...

    @property
    def prefix_cache_queries(self) -> int: ...

    @property
    def prefix_cache_hits(self) -> int: ...

    @property
    def external_prefix_cache_hits(self) -> int: ...

    @property
    def num_generation_tokens(self) -> int: ...

    @property
    def num_spec_tokens(self) -> int: ...

    @property
    def num_accepted_spec_tokens(self) -> int: ...

    @property
    def num_unknown_aborts(self) -> int: ...

    @property
    def num_expired_reqs(self) -> int: ...

    def __getstate__(self) -> tuple[int, int, int, int, int, int, float, float, int, int, int, int, int, float, int, int, int, int, int, int, int, int, int]: ...

    def __setstate__(self, arg: tuple[int, int, int, int, int, int, float, float, int, int, int, int, int, float, int, int, int, int, int, int, int, int, int], /) -> None: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __repr__(self) -> str: ...

class PauseMode(enum.Enum):
    """How an engine pauses."""

    KEEP = 0
    """Nothing is computed until it resumes."""

    WAIT = 1
    """Running requests go on, waiting ones do not begin."""

class UnfinishedRequests(enum.Enum):
    """
    What becomes of unfinished requests when an engine sleeps or is changed.
    """

    REFUSE = 0
    """ValueError while there is one."""

    WAIT = 1
    """No new ones are accepted; the others finish first."""

    ABORT = 2
    """They end with finish_reason "abort"."""

    KEEP = 3
    """They go on with new weights, computed anew."""

class OutputQueue:
    """Collects outputs for a consumer that polls; untaken deltas are merged."""

    def __init__(self) -> None: ...

    def take(self, timeout_ms: int) -> list[RequestOutput]:
        """
        Everything that waits, oldest first; waits up to timeout_ms for the first.
        """

class EngineBase:
    """What both engines offer besides requests."""

    @property
    def model(self) -> ModelDescription: ...

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    def apply_chat_template(self, messages_json: str, options_json: str = '{}', chat_template: str = '') -> str: ...

    def stats(self) -> EngineStats: ...

    def expert_loads(self) -> list[tuple[str, list[int]]]:
        """The tokens of each expert, by the name of its layer."""

    @property
    def dead_error(self) -> str: ...

    def reset_prefix_cache(self) -> bool:
        """
        Forgets cached prefixes. False, and nothing done, while a request is unfinished.
        """

    @property
    def seconds_since_progress(self) -> float: ...

    def check_health(self, timeout_ms: int = 5000) -> None: ...

    def sleep(self, level: int = 1, mode: UnfinishedRequests = UnfinishedRequests.REFUSE) -> None: ...

    def wake_up(self, tags: Sequence[str] = []) -> None: ...

    @property
    def is_sleeping(self) -> bool: ...

    def update_weights_from_directory(self, directory: str, partial: bool = False, mode: UnfinishedRequests = UnfinishedRequests.REFUSE) -> None: ...

    def update_weights_from_tensors(self, named_tensors: list[tuple[str, object]], partial: bool, mode: UnfinishedRequests) -> None: ...

    def add_lora(self, lora_name: str, lora_int_id: int, lora_path: str, load_inplace: bool) -> bool: ...

    def remove_lora(self, lora_name: str) -> bool: ...

    def pin_lora(self, lora_name: str) -> bool: ...

    def list_loras(self) -> list[tuple[str, int, str, int, bool, bool, int]]:
        """The fields of LoraInfo, of each adapter."""

    def pause(self, mode: PauseMode = PauseMode.KEEP) -> None: ...

    def resume(self) -> None: ...

    def take_kv_events(self) -> list[KVCacheEvent]: ...

    def dump_flight_recorder(self, path: str) -> None: ...

    def shutdown(self) -> None:
        """
        Ends the engine: waits for the step that runs, drops unfinished requests, refuses later ones.
        """

class Engine(EngineBase):
    """The engine on threads of its own. Thread-safe."""

    def __init__(self, config: EngineConfig) -> None: ...

    def add_requests(self, requests: list[EngineRequest], queue: OutputQueue, output_kind: RequestOutputKind, name: str = 'requests') -> None:
        """
        Queues requests whose outputs, of that kind, go to `queue`: all of them, or none and ValueError, which says which one of `name` is wrong. Uses them up.
        """

    def abort_request(self, request_id: str) -> bool: ...

    def abort_all_requests(self) -> None: ...

    def drain(self, timeout_ms: int) -> bool:
        """Accepts no more requests; waits until all are finished."""

    @property
    def is_draining(self) -> bool: ...

class OutputSelector:
    """
    Tells an event loop which of many queues have outputs, once for each step.
    """

    def __init__(self, engine: Engine) -> None: ...

    def fileno(self) -> int:
        """Readable while take() would give something."""

    def open(self, key: int) -> OutputQueue:
        """A queue that arrivals are told of under this key."""

    def take(self) -> list[int]:
        """
        The keys of the queues that something arrived in, since all that was there had been taken.
        """

class LLMEngine(EngineBase):
    """The engine without threads: it computes inside step()."""

    def __init__(self, config: EngineConfig) -> None: ...

    def add_request(self, request: EngineRequest) -> str:
        """Uses the request up."""

    def abort_request(self, request_id: str) -> bool: ...

    def has_unfinished_requests(self) -> bool: ...

    def step(self) -> list[RequestOutput]:
        """One step. What is new or finished, perhaps nothing."""

class HttpRoute(enum.Enum):
    """What a body is sent to."""

    COMPLETIONS = 0
    """/v1/completions"""

    CHAT_COMPLETIONS = 1
    """/v1/chat/completions"""

    MESSAGES = 2
    """/v1/messages"""

    COUNT_TOKENS = 3
    """/v1/messages/count_tokens"""

    RESPONSES = 4
    """/v1/responses"""

class HttpError:
    """An error, as a client is told of it."""

    def __init__(self, status: int, message: str, param: str = '', code: str = '') -> None: ...

    @property
    def status(self) -> int: ...

    @property
    def message(self) -> str: ...

    @property
    def param(self) -> str: ...

    @property
    def code(self) -> str: ...

    def body(self, route: HttpRoute = HttpRoute.COMPLETIONS) -> bytes:
        """The body, as the route's API has it."""

class HttpExchange:
    """One request on its way."""

    @property
    def is_stream(self) -> bool: ...

    def take(self) -> bytes:
        """What is to be sent now; empty: nothing yet."""

    @property
    def finished(self) -> bool: ...

    @property
    def status(self) -> int: ...

    def abort(self) -> None: ...

    @property
    def usage(self) -> RequestUsage: ...

    @property
    def metrics(self) -> RequestMetrics: ...

    @property
    def sampling_params(self) -> SamplingParams:
        """What its first prompt was asked with."""

    @property
    def lora_name(self) -> str:
        """The adapter that it is computed with; empty: none."""

    @property
    def finish_reasons(self) -> list[str]:
        """Of each choice that has ended, in the order in which they did."""

    @property
    def error(self) -> str:
        """Why it failed; empty: it has not."""

class HttpApi:
    """Bodies of requests to requests of an engine; see quire/http_api.h."""

    def __init__(self, engine: Engine, config: EngineConfig, served_model_names: Sequence[str], reasoning_parser: str = '', tool_parser: str = '', chat_template: str = '', return_tokens_as_token_ids: bool = False) -> None: ...

    def begin(self, engine: Engine, route: HttpRoute, body: bytes, request_id: str, created: int, queue: OutputQueue) -> HttpExchange | HttpError:
        """
        Reads a body and queues what it asks for; its outputs come through `queue`.
        """

    def count_tokens(self, engine: Engine, body: bytes) -> bytes | HttpError:
        """The answer of /v1/messages/count_tokens to a body."""

def http_refused_fields(route: HttpRoute) -> list[str]:
    """Fields that a route's bodies may not have."""

def http_required_fields(route: HttpRoute) -> list[str]:
    """Fields that a route's bodies must have."""

def http_fields(route: HttpRoute) -> list[list[str]]:
    """
    Of each field of a body that is none of a request's: name, JSON schema, what it does.
    """

def json_schema_keywords() -> list[dict[str, str]]:
    """
    What is made of each keyword of JSON Schema in structured_outputs: kept, partly, annotation or refused.
    """

def request_fields() -> list[dict[str, Any]]:
    """What every door knows of the fields of a request, in their order."""

def engine_config_fields() -> list[dict[str, Any]]:
    """What is known of the fields of EngineConfig, in their order."""

def read_engine_config_field(name: str, text: str) -> Any:
    """
    The value that a text (JSON, or a string without its quotes) is for a field of EngineConfig. Raises ValueError that names the field, the value and what would do.
    """

class ReplayReport:
    """How a replay went; see quire/flight_recorder.h."""

    @property
    def model(self) -> str: ...

    @property
    def seconds(self) -> float: ...

    @property
    def num_requests(self) -> int: ...

    @property
    def num_steps(self) -> int: ...

    @property
    def num_identical(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_preemptions(self) -> int: ...

    @property
    def divergence(self) -> str: ...

def replay_recording(path: str) -> ReplayReport:
    """
    Schedules a recording anew and compares, step by step. Raises ValueError for a damaged file.
    """

def write_perfetto_trace(recording_path: str, trace_path: str) -> ReplayReport:
    """
    Writes a recording as a timeline for Perfetto. Raises ValueError as replay_recording does.
    """

def simulate(options_json: str) -> str:
    """
    Runs a simulation: options in, report out, both JSON. See quire/simulator.h, and quire.simulate.
    """
