"""Quire beside llama.cpp on the same GGUF files: ids of texts, greedy tokens, and the time to load.

    python benchmarks/cpu/compare_gguf.py --work-dir /tmp/bench

Needs llama-cpp-python and gguf. Files are quantized by llama.cpp itself. Ids and tokens are compared on the
demo model, 100 prompts of 64 tokens, each file's with llama.cpp on the same file and on what llama.cpp
makes of it as F32: it rounds activations before it multiplies quantized weights, to eight bits, and to BF16
for BF16 ones, which Quire does not. Where two texts part, the gap is between the two likeliest tokens of
Quire's there. Loading is that of the 0.67 B shape of compare_peers.py, each time in a new process, by
turns, until there is a first token; its file has no tokenizer. Before each turn the file is read once:
through a buffer, and into memory of its size.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from compare_peers import cpu_name, peak_memory_gib
from peer_models import make_gguf, make_model

NUM_PROMPTS = 100
NUM_TOKENS = 64
WORDS = ["the", "baker", "little", "ship", "and", "old", "king", "saw", "was", "red", "sea", "door", "who"]
WORDS += ["open", "children", "night", "because", "said", "in", "on", "a"]
TEXTS = [
    "It's 2026, and they'LL've seen 1234567 of them!!  \n\n  (really?)\r\n\ttabs   and spaces  ",
    "naïve café — Ünïcode; 北京欢迎你 ١٢٣ नमस्ते 👩‍👩‍👧 x²+y²=z²\u00a0\u2003end",
    "def f(x):\n    return {'a': [1, 22, 333], \"b\": x**2}  # don't\n\n\n",
    "<|im_start|>user\nHi<|im_end|>\n",
]


def prompts() -> list[str]:
    rng = random.Random(0)
    return [
        "Once upon a time " + " ".join(rng.choices(WORDS, k=rng.randint(2, 12))) for _ in range(NUM_PROMPTS)
    ]


class LlamaCpp:
    """One model of llama.cpp's, one sequence at a time."""

    def __init__(self, path: Path, threads: int, num_tokens: int) -> None:
        import llama_cpp

        self.lib = llama_cpp
        llama_cpp.llama_log_set(SILENT, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = num_tokens
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = 0  # float32, as Quire's with dtype="float32"
        self.context = llama_cpp.llama_init_from_model(model, params)
        self.vocab = llama_cpp.llama_model_get_vocab(model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocab)

    def encode(self, text: str) -> list[int]:
        data = text.encode()
        out = (ctypes.c_int32 * (len(data) + 8))()
        count = self.lib.llama_tokenize(self.vocab, data, len(data), out, len(out), True, True)
        return list(out[:count])

    def generate(self, ids: Sequence[int], num_tokens: int) -> list[int]:
        import numpy as np

        lib = self.lib
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        answer: list[int] = []
        step = list(ids)
        while len(answer) < num_tokens:
            tokens = (ctypes.c_int32 * len(step))(*step)
            if lib.llama_decode(self.context, lib.llama_batch_get_one(tokens, len(step))) != 0:
                raise RuntimeError("llama_decode failed")
            logits = lib.llama_get_logits_ith(self.context, -1)
            step = [int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())]
            answer += step
        return answer


def silent(level: int, text: bytes, user_data: Any) -> None:
    pass


SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(silent)


def quantize(source: Path, kind: str) -> Path:
    """By llama.cpp, beside the source."""
    import llama_cpp

    target = source.with_name(f"{source.stem}-{kind}.gguf")  # of a quantized source too
    if not target.exists():
        llama_cpp.llama_log_set(SILENT, ctypes.c_void_p(0))
        params = llama_cpp.llama_model_quantize_default_params()
        params.allow_requantize = True
        params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}")
        if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params) != 0:
            raise RuntimeError(f"llama.cpp cannot write {target}")
    return target


def compare_texts(path: Path, threads: int) -> str:
    """A row of the table: ids and greedy tokens of one file."""
    from quire import LLM, SamplingParams

    texts = prompts()
    llm = LLM(str(path), num_threads=threads, max_model_len=256, dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
    ours = llm.generate(texts, params, use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    peer = LlamaCpp(path, threads, 256)
    same_ids = sum(tokenizer.encode(text) == peer.encode(text) for text in [*TEXTS, *texts])
    row = f"{same_ids} of {len(TEXTS) + NUM_PROMPTS}"
    for other in (peer, LlamaCpp(quantize(path, "F32"), threads, 256)):
        same, gaps = 0, [0.0]
        for text, output in zip(texts, ours, strict=True):
            answer = output.outputs[0]
            mine, theirs = list(answer.token_ids), other.generate(tokenizer.encode(text), NUM_TOKENS)
            same += mine == theirs
            if mine != theirs and answer.logprobs is not None:
                at = next(i for i in range(NUM_TOKENS) if mine[i] != theirs[i])
                likely = sorted((token.logprob for token in answer.logprobs[at].values()), reverse=True)
                gaps.append(likely[0] - likely[1])
        row += f" | {same} of {NUM_PROMPTS} | {max(gaps):.4f}"
    return row


def measure_load(engine: str, path: Path, threads: int) -> dict[str, float]:
    """In this process, whose imports come before the clock starts."""
    ids = list(range(1, 9))
    if engine == "quire":
        from quire import LLM, SamplingParams

        start = time.perf_counter()
        llm = LLM(str(path), skip_tokenizer_init=True, num_threads=threads, max_model_len=512, max_num_seqs=1)
        ready = time.perf_counter() - start
        llm.generate([ids], SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
    elif engine == "llama_cpp":
        import llama_cpp  # noqa: F401
        import numpy  # noqa: F401

        start = time.perf_counter()
        peer = LlamaCpp(path, threads, 512)
        ready = time.perf_counter() - start
        peer.generate(ids, 1)
    else:
        import torch
        import transformers

        torch.set_num_threads(threads)
        start = time.perf_counter()
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
        ready = time.perf_counter() - start
        with torch.inference_mode():
            model(torch.tensor([ids]))
    return {"ready": ready, "first": time.perf_counter() - start, "peak": peak_memory_gib()}


def read_once(path: Path) -> dict[str, float]:
    """Seconds to read a file through a buffer of a MiB, and into memory of its size, which numpy gets in huge
    pages; both on one thread."""
    import numpy as np

    start = time.perf_counter()
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    through = time.perf_counter() - start
    start = time.perf_counter()
    np.fromfile(path, np.uint8)
    return {"read": through, "memory": time.perf_counter() - start}


def in_process(*arguments: str) -> Any:
    command = [sys.executable, __file__, *arguments]
    return json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )


def compare_loads(rows: Iterable[tuple[str, str, Path]], rounds: int, threads: int) -> None:
    rows = list(rows)
    best: dict[tuple[str, str], dict[str, float]] = {}
    for _ in range(rounds):
        for name, engine, path in rows:
            file = path / "model.safetensors" if path.is_dir() else path
            got = read_once(file) | in_process(
                "--load", engine, "--model", str(path), "--threads", str(threads)
            )
            kept = best.setdefault((name, engine), got)
            for key, value in got.items():
                kept[key] = min(kept[key], value)
    columns = ("read", "memory", "ready", "first", "peak")
    print("| file | engine | read (s) | read into memory (s) | ready (s) | first token (s) | peak (GiB) |")
    print("|---|---|---|---|---|---|---|")
    for (name, engine), got in best.items():
        print(f"| {name} | {engine} | " + " | ".join(f"{got[column]:.3g}" for column in columns), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work-dir", type=Path, default=Path(tempfile.gettempdir()) / "quire-bench")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.load:
        print(json.dumps(measure_load(args.load, args.model, args.threads)))
        return
    args.work_dir.mkdir(parents=True, exist_ok=True)
    print(f"{cpu_name()}, {args.threads} threads")

    from quire.model_directory import resolve_model

    demo = args.work_dir / "demo.gguf"
    if not demo.exists():
        make_gguf(Path(resolve_model("quire-demo")), demo)
    print("| demo model as | same ids | same 64 tokens | largest gap | as its F32 | largest gap |")
    print("|---|---|---|---|---|---|")
    for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K_M", "Q6_K"):
        print(f"| {kind} | {compare_texts(quantize(demo, kind), args.threads)} |", flush=True)

    directory = args.work_dir / "llama-0.67b"
    file = args.work_dir / "llama-0.67b.gguf"
    if not (directory / "model.safetensors").exists():
        make_model(directory)
    if not file.exists():
        make_gguf(directory, file)
    rows = [("safetensors", "quire", directory), ("safetensors", "transformers", directory)]
    for kind in ("BF16", "Q8_0", "Q4_K_M"):
        path = file if kind == "BF16" else quantize(file, kind)
        rows += [(kind, "quire", path), (kind, "llama_cpp", path)]
    if args.rounds > 0:
        compare_loads(rows, args.rounds, args.threads)


if __name__ == "__main__":
    main()
