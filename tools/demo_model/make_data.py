"""Generates the training set: rows of token ids, each starting with a new document.

    python tools/demo_model/make_data.py --tokenizer DIR --out DIR --rows 640000

Shard i depends on the seed and i alone, so the result does not depend on the number of workers.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from corpus import sample_document
from corpus.chat import TEXT_END
from corpus.grammar import Rng
from numpy.typing import NDArray
from tokenizers import Tokenizer

ROW_LENGTH = 2049  # 2,048 inputs and, one later, 2,048 targets
ROWS_PER_SHARD = 2000
_DOCUMENTS_AT_ONCE = 500


def make_rows(tokenizer: Tokenizer, seed: int, num_rows: int, held_out: bool = False) -> NDArray[np.int16]:
    """Documents end to end, cut where a row is full; the rest of a cut document is dropped."""
    rng = Rng(seed, held_out)
    end = tokenizer.encode(TEXT_END).ids[0]
    rows = np.empty((num_rows, ROW_LENGTH), dtype=np.int16)
    row, filled = 0, 0
    while True:
        texts = [sample_document(rng).text for _ in range(_DOCUMENTS_AT_ONCE)]
        for encoding in tokenizer.encode_batch_fast(texts):
            ids = [*encoding.ids, end][: ROW_LENGTH - filled]
            rows[row, filled : filled + len(ids)] = ids
            filled += len(ids)
            if filled == ROW_LENGTH:
                row, filled = row + 1, 0
                if row == num_rows:
                    return rows


def _make_shard(index: int, seed: int, tokenizer_path: str, out: Path) -> None:
    tokenizer = Tokenizer.from_file(tokenizer_path)
    rows = make_rows(tokenizer, seed * 1_000_003 + index, ROWS_PER_SHARD)
    np.save(out / f"{index:05d}.npy", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="model directory")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    work = partial(
        _make_shard,
        seed=args.seed,
        tokenizer_path=str(args.tokenizer / "tokenizer.json"),
        out=args.out,
    )
    num_shards = -(-args.rows // ROWS_PER_SHARD)
    with Pool(args.workers) as pool:
        pool.map(work, range(num_shards), chunksize=1)
    num_tokens = num_shards * ROWS_PER_SHARD * (ROW_LENGTH - 1)
    print(f"{num_tokens / 1e6:.0f} M tokens in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
