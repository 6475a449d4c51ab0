"""Trains the tokenizer of quire-demo and writes every file of the model directory but the weights.

python tools/demo_model/train_tokenizer.py --out DIR
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from corpus import documents
from corpus.chat import IM_END, IM_START, TEXT_END
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

VOCAB_SIZE = 4096
CONTEXT_LENGTH = 2048
SPECIAL_TOKENS = [TEXT_END, IM_START, IM_END, *(f"<|reserved_{i}|>" for i in range(5))]

# How Qwen2 splits text before BPE: contractions, words with one leading mark, single digits,
# punctuation runs, line ends and spaces.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "{{ '<|im_start|>system\n' + message['content'] + '<|im_end|>\n' }}"
    "{% elif message['role'] == 'user' %}"
    "{{ '<|im_start|>user\n' + message['content'] + '<|im_end|>\n' }}"
    "{% else %}"
    "{{ '<|im_start|>assistant\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train(texts: Iterable[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def model_config(tokenizer: Tokenizer) -> dict[str, Any]:
    end_of_text = tokenizer.token_to_id(TEXT_END)
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": [tokenizer.token_to_id(IM_END), end_of_text],
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 768,
        "max_position_embeddings": CONTEXT_LENGTH,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 8,
        "num_key_value_heads": 2,
        "pad_token_id": end_of_text,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": tokenizer.get_vocab_size(),
    }


def write_model_files(tokenizer: Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = model_config(tokenizer)
    tokenizer_config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token in SPECIAL_TOKENS
        },
        "additional_special_tokens": [t for t in SPECIAL_TOKENS if t not in (TEXT_END, IM_END)],
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": IM_END,
        "model_max_length": CONTEXT_LENGTH,
        "pad_token": TEXT_END,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    generation_config = {
        "do_sample": False,
        "eos_token_id": config["eos_token_id"],
        "pad_token_id": config["pad_token_id"],
    }
    for name, content in (
        ("config.json", config),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", generation_config),
    ):
        (out / name).write_text(json.dumps(content, indent=2) + "\n")


def sample_texts(num_documents: int, seed: int) -> Iterator[str]:
    for document in documents(seed=seed, num_documents=num_documents):
        # Special tokens are matched before BPE, so the trainer must not see their text.
        text = document.text
        for token in SPECIAL_TOKENS:
            text = text.replace(token, "")
        yield text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="model directory to write into")
    parser.add_argument("--num-documents", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=20_000_001)
    args = parser.parse_args()
    tokenizer = train(sample_texts(args.num_documents, args.seed))
    write_model_files(tokenizer, args.out)
    print(f"{tokenizer.get_vocab_size()} tokens written to {args.out}")


if __name__ == "__main__":
    main()
