"""Replays scheduling traces through vLLM 0.26's own Scheduler and prints what it decided.

Runs inside the environment that ``setup_vllm.sh`` makes; needs no GPU and no model. Reads JSON lines
from a file (or stdin) and writes JSON lines to stdout::

    .venv-vllm/bin/python tests/conformance/vllm_oracle.py traces.jsonl > expected.jsonl

A trace is a line with the ``TraceConfig`` of vllm_scheduler.py, then events, then the end. Traces may
follow one another::

    {"config": {"num_blocks": 15, "block_size": 4, ...}}
    {"add": {"id": 1, "prompt": [5, 6], "output": [9, 0], "max_tokens": 8, "priority": 0, "cache_salt": "",
             "lora": 0, "drafts": [[9], []]}}       (one line; "drafts" may be left out)
    {"step": 3}
    {"abort": 1}
    {"end": true}                                   (runs until every request has ended)

``output`` is what the model samples; past its end it samples ``1 + index % 7``. Token 0 ends a request.
``lora`` is the number of its adapter, 0 for none.
``drafts[i]`` is proposed once output ``i`` is known, and accepted as far as it equals the output.

The answer has one line per scheduled step, in step order, counted from 0::

    {"step": 0, "tokens": {"1": 8}, "preempted": [], "hits": {"1": 4}, "finished": [], "free": 7}

``hits`` are the tokens found in the cache by each request admitted in this step, ``finished`` who ended
by this step's result, ``free`` the free blocks once it was scheduled. A step that only preempted, because
the request in need of a block was itself the victim, is a line without tokens; nothing is computed then.
A trace ends in ``{"end": true, ...}``, with ``{"stuck": true}`` before it if requests were left, or in
``{"error": "..."}`` where vLLM raised.

``uncomputed_hits`` in the last line counts admissions to which vLLM gave blocks that nobody computed: under
"priority" it may preempt a request that it has already scheduled in the same step, and the blocks
of that request stay findable. A scheduler that is right differs from there on.

With "async_scheduling", one {"step"} schedules a step and then, if it is the second one in flight or there
was nothing to schedule, collects the oldest result.
"""

import argparse
import json
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

from vllm_scheduler import TraceConfig, Vllm

MAX_STEPS_TO_END = 10_000
# Both steps of vLLM's asynchronous engine loop: one being computed, one scheduled ahead of its result.
ASYNC_QUEUE_SIZE = 2


@dataclass
class TracedRequest:
    """A request of the trace and the tokens that the pretended model gives it."""

    request: Any
    script: list[int]
    drafts: list[list[int]]

    def sample(self, output_index: int) -> int:
        if output_index < len(self.script):
            return self.script[output_index]
        return 1 + output_index % 7

    def verify(self, output_index: int, drafts: list[int]) -> list[int]:
        """Accepts the longest right prefix of ``drafts`` and samples one more token."""
        tokens: list[int] = []
        for draft in drafts:
            tokens.append(self.sample(output_index + len(tokens)))
            if tokens[-1] != draft:
                return tokens
        tokens.append(self.sample(output_index + len(tokens)))
        return tokens


@dataclass
class Step:
    """A step, what to print about it, and what the model will answer."""

    line: dict[str, Any]
    scheduler_output: Any = None
    sampled: dict[str, list[int]] = field(default_factory=dict)
    done: bool = False


class Replay:
    """One trace."""

    def __init__(self, vllm: Vllm, config: TraceConfig, out: list[str]) -> None:
        self._vllm = vllm
        self._config = config
        self._out = out
        self._scheduler = vllm.make_scheduler(config)
        self._block_hasher = vllm.make_block_hasher(config)
        self._requests: dict[str, TracedRequest] = {}
        self._finish_order: list[list[int | str]] = []
        self._num_preemptions = 0
        self._num_steps = 0
        self._in_flight: deque[Step] = deque()
        self._unprinted: deque[Step] = deque()
        # The SchedulerOutput reports preempted requests as a set; their order is only seen here.
        self._preempted: list[int] = []
        preempt_request = self._scheduler._preempt_request

        def record_preemption(request: Any, timestamp: float) -> None:
            self._preempted.append(int(request.request_id))
            self._find_uncomputed_blocks(request)
            preempt_request(request, timestamp)

        self._scheduler._preempt_request = record_preemption
        # Blocks that can be found by their hash although nothing was ever written to them.
        self._uncomputed_blocks: dict[int, tuple[Any, Any]] = {}
        self._num_uncomputed_hits = 0

    def handle(self, event: dict[str, Any]) -> None:
        if "add" in event:
            self._add(event["add"])
        elif "abort" in event:
            self._abort(str(event["abort"]))
        elif "step" in event:
            for _ in range(event["step"]):
                self._step()
        elif "end" in event:
            self._finish()
        else:
            raise ValueError(f"unknown event: {sorted(event)}")

    def _add(self, values: dict[str, Any]) -> None:
        request_id = str(values["id"])
        request = self._vllm.make_request(
            request_id,
            values["prompt"],
            self._vllm.make_sampling_params(values["max_tokens"]),
            block_hasher=self._block_hasher,
            arrival_time=float(len(self._requests)),
            priority=values.get("priority", 0),
            cache_salt=values.get("cache_salt", ""),
            lora=values.get("lora", 0),
        )
        self._requests[request_id] = TracedRequest(
            request, values.get("output", []), values.get("drafts", [])
        )
        self._scheduler.add_request(request)

    def _abort(self, request_id: str) -> None:
        for request in self._scheduler.finish_requests(request_id, self._vllm.aborted_status):
            self._finish_order.append([int(request.request_id), "abort"])

    def _step(self) -> None:
        """Schedules one step and collects at most one result."""
        step = self._schedule()
        if step is not None:
            self._in_flight.append(step)
        # vLLM's engine loop fills the queue first, and collects when it is full or nothing can be scheduled.
        queue_size = ASYNC_QUEUE_SIZE if self._config.async_scheduling else 1
        if self._in_flight and (step is None or len(self._in_flight) == queue_size):
            self._collect(self._in_flight.popleft())

    def _schedule(self) -> Step | None:
        self._preempted.clear()
        scheduler_output = self._scheduler.schedule()
        new = scheduler_output.scheduled_new_reqs
        hits = {request.req_id: request.num_computed_tokens for request in new}
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, num_computed_tokens in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            if request_id in cached.resumed_req_ids:
                hits[request_id] = num_computed_tokens
        self._count_uncomputed_hits(hits)
        if not scheduler_output.num_scheduled_tokens and not self._preempted:
            return None
        self._num_preemptions += len(self._preempted)
        step = Step(
            line={
                "step": self._num_steps,
                "tokens": dict(scheduler_output.num_scheduled_tokens),
                "preempted": list(self._preempted),
                "hits": hits,
                "finished": [],
                "free": self._num_free_blocks(),
            },
            scheduler_output=scheduler_output,
        )
        self._num_steps += 1
        self._unprinted.append(step)
        if not scheduler_output.num_scheduled_tokens:
            step.done = True
            self._print_done()
            return None
        for request_id in scheduler_output.num_scheduled_tokens:
            traced = self._requests[request_id]
            request = traced.request
            if request.is_prefill_chunk:
                step.sampled[request_id] = []  # more of the prompt is still to come
                continue
            # What is scheduled is already counted as computed here.
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(request_id, [])
            output_index = request.num_computed_tokens - len(drafts) - request.num_prompt_tokens
            step.sampled[request_id] = traced.verify(output_index, drafts)
        return step

    def _blocks(self, request_id: str) -> Any:
        return self._scheduler.kv_cache_manager.get_blocks(request_id).blocks[0]

    def _find_uncomputed_blocks(self, request: Any) -> None:
        """Notes what a victim leaves in the cache of the tokens it was to compute in this very step."""
        first = request.num_computed_tokens // self._config.block_size
        for block in self._blocks(request.request_id)[first:]:
            if block.block_hash is not None:
                self._uncomputed_blocks[block.block_id] = (block, block.block_hash)

    def _count_uncomputed_hits(self, hits: dict[str, int]) -> None:
        self._uncomputed_blocks = {
            block_id: (block, block_hash)
            for block_id, (block, block_hash) in self._uncomputed_blocks.items()
            if block.block_hash == block_hash
        }
        if not self._uncomputed_blocks:
            return
        for request_id, num_hit_tokens in hits.items():
            hit_blocks = self._blocks(request_id)[: num_hit_tokens // self._config.block_size]
            self._num_uncomputed_hits += any(
                block.block_id in self._uncomputed_blocks for block in hit_blocks
            )

    def _collect(self, step: Step) -> None:
        ids = list(step.sampled)
        results = self._scheduler.update_from_output(
            step.scheduler_output,
            self._vllm.model_runner_output_cls(
                req_ids=ids,
                req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
                sampled_token_ids=list(step.sampled.values()),
            ),
        )
        for client_results in results.values():
            for result in client_results.outputs:
                if result.finish_reason is not None:
                    request_id = int(result.request_id)
                    step.line["finished"].append(request_id)
                    self._finish_order.append([request_id, str(result.finish_reason)])
        if self._config.num_speculative_tokens > 0:
            self._scheduler.update_draft_token_ids(
                self._vllm.draft_token_ids_cls(ids, [self._next_drafts(request_id) for request_id in ids])
            )
        step.done = True
        self._print_done()

    def _next_drafts(self, request_id: str) -> list[int]:
        traced = self._requests[request_id]
        last_index = traced.request.num_output_tokens - 1
        if not 0 <= last_index < len(traced.drafts):
            return []
        return traced.drafts[last_index][: self._config.num_speculative_tokens]

    def _finish(self) -> None:
        for _ in range(MAX_STEPS_TO_END):
            if self._scheduler.get_num_unfinished_requests() == 0:
                break
            self._step()
        else:
            self._out.append(json.dumps({"stuck": True}))
        # Steps that were scheduled ahead for requests that have ended meanwhile.
        while self._in_flight:
            self._collect(self._in_flight.popleft())
        self._out.append(
            json.dumps(
                {
                    "end": True,
                    "finish_order": self._finish_order,
                    "outputs": {
                        request_id: list(traced.request.output_token_ids)
                        for request_id, traced in self._requests.items()
                    },
                    "free": self._num_free_blocks(),
                    "preemptions": self._num_preemptions,
                    "uncomputed_hits": self._num_uncomputed_hits,
                }
            )
        )

    def _num_free_blocks(self) -> int:
        num_free_blocks: int = self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return num_free_blocks

    def _print_done(self) -> None:
        while self._unprinted and self._unprinted[0].done:
            self._out.append(json.dumps(self._unprinted.popleft().line))


def replay_all(vllm: Vllm, lines: Iterable[str], output: TextIO) -> int:
    """Replays every trace in ``lines``; returns how many there were."""
    num_traces = 0
    replay: Replay | None = None
    out: list[str] = []
    for line in lines:
        if not line.strip():
            continue
        event = json.loads(line)
        try:
            if "config" in event:
                num_traces += 1
                replay = Replay(vllm, TraceConfig.from_json(event["config"]), out)
            elif replay is not None:
                replay.handle(event)
        except Exception as error:
            traceback.print_exc()
            out.append(json.dumps({"error": f"{type(error).__name__}: {error}"}))
            replay = None  # the rest of this trace is skipped
        if "end" in event or replay is None:
            replay = None
            output.writelines(text + "\n" for text in out)
            output.flush()
            out.clear()
    output.writelines(text + "\n" for text in out)
    output.flush()
    return num_traces


def main() -> None:
    parser = argparse.ArgumentParser(description="Replays scheduling traces through vLLM's Scheduler.")
    parser.add_argument("traces", nargs="?", help="file of JSON lines (default: stdin)")
    parser.add_argument("--time", action="store_true", help="report the time per trace on stderr")
    args = parser.parse_args()

    # Whatever vLLM or a library prints must not end up between the result lines.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    vllm = Vllm()
    with open(args.traces) if args.traces else sys.stdin as lines:
        start = time.perf_counter()
        num_traces = replay_all(vllm, lines, output)
        seconds = time.perf_counter() - start
    if args.time and num_traces > 0:
        print(
            f"{num_traces} traces in {seconds:.2f} s, {1e3 * seconds / num_traces:.2f} ms each",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
