"""Directories that nobody vouches for: what is wrong with one is said by its file, the tensor or key, and
what was found or expected, before it costs anything.

A row is a damage to a small valid directory, and its refusal. More of single readers is in test_bad_input.py,
test_model_directories.py, test_gguf.py, test_tokenizer_files.py, test_tokenizer_directories.py,
test_chat_template.py, test_export.py, test_export_contents.py and test_export_archives.py.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import quire
from tiny_directories import (
    EMBEDDING,
    GENERATION,
    INDEX,
    NAMES,
    NORM,
    QUERY,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    Damage,
    added,
    around,
    array,
    as_hub_snapshot,
    both,
    bpe,
    characters,
    chat,
    config,
    defaults,
    encode,
    entry,
    f32,
    gguf,
    header,
    hidden_size,
    index,
    instead,
    link,
    load,
    load_gguf,
    norm_in,
    packed,
    packed_bytes,
    piece,
    plan,
    ranks,
    refusal,
    remove,
    sections,
    sentencepiece,
    set_keys,
    sharded,
    split,
    tekken,
    tokenize,
    u32,
    vocab_and_merges,
    write,
    write_safetensors,
)

Door = Callable[[Path], object]
Rows = list[tuple[Damage, str]]


def test_a_directory_is_valid_before_it_is_damaged(tiny_model: Path) -> None:
    assert (
        chat(tiny_model) == "x"
        and len(encode(tiny_model)) == 41
        and plan(tiny_model)
        and defaults(tiny_model)
    )
    sharded()(tiny_model)
    assert load(tiny_model)
    gguf()(tiny_model)
    assert load_gguf(tiny_model)
    (tiny_model / "x.gguf").unlink()
    write_safetensors(tiny_model / WEIGHTS, NAMES)
    packed()(tiny_model)
    assert load(tiny_model)
    for damage in (vocab_and_merges('{"a": 0, "c": 1}'), ranks(), tekken(), sentencepiece(b"")):
        write(TOKENIZER, "")(tiny_model)
        damage(tiny_model)
        assert tokenize(tiny_model)


HUGE, ALL_BITS = 1 << 63, (1 << 64) - 1


def twice(model: Path) -> None:
    write_safetensors(model / "b.safetensors", [NORM])


def outside(model: Path) -> None:
    (model / "b.safetensors").rename(model.parent / "b.safetensors")
    link("b.safetensors", "../b.safetensors")(model)


LOOP = "no such file, or it cannot be read"


# A reader's damages, and what is said of the file.

ONE_FILE: Rows = [
    (write(WEIGHTS, struct.pack("<Q", HUGE) + b"{}"), f"the header claims {HUGE} bytes, the file has 10"),
    (link(WEIGHTS, WEIGHTS), "Too many levels of symbolic links"),
    (
        header(lambda names: json.dumps(names).replace('"shape"', '"shape": [7], "shape"', 1).encode()),
        f"the header: '{EMBEDDING}.shape' is there twice",
    ),
    (header(lambda names: b'{"a": {}, "a": {}}'), "the header: 'a' is there twice"),
    (header(lambda names: b"[]"), "the header is not a JSON object"),
    (header(lambda names: names.update({NORM: []})), f"tensor '{NORM}': the header entry is not an object"),
    (entry(dtype=5), f"tensor '{NORM}': dtype is missing"),
    (entry(shape=[1 << 40, 1 << 40]), f"tensor '{NORM}': shape overflows"),
    (entry(shape=[1 << 64]), rf"tensor '{NORM}': shape \[1.8.*\] holds something other than sizes"),
    (entry(shape=[True]), rf"tensor '{NORM}': shape \[true\] holds something other than sizes"),
    (entry(shape=[0, 1 << 62, 1 << 62]), f"tensor '{NORM}': data_offsets span 128 bytes, .* takes 0"),
    (entry(data_offsets=[200, 100]), rf"tensor '{NORM}': data_offsets end before they begin: \[200,100\]"),
    (entry(data_offsets=[1 << 64, 0]), f"tensor '{NORM}': data_offsets is not a pair of byte positions"),
    (entry(data_offsets=[0, 128]), f"tensor '{EMBEDDING}' begins at byte 0, expected 128: .*overlap"),
    (config(vocab_size=1 << 24), rf"tensor '{EMBEDDING}' has shape \[260, 32\], .* asks for \[16777216"),
    (config(head_dim=65536), r"tensor '.*q_proj.weight' has shape \[32, 32\], .* asks for \[131072, 32\]"),
]
INDICES: Rows = [
    (norm_in("../valid0/model.safetensors"), f"weight_map of '{NORM}' must be a file name, got '../valid0"),
    (norm_in("/etc/passwd"), f"weight_map of '{NORM}' must be a file name, got '/etc/passwd'"),
    (norm_in(".."), f"weight_map of '{NORM}' must be a file name, got '..'"),
    (norm_in("a.safetensors\0"), f"weight_map of '{NORM}' must be a file name, got 'a.safetensors"),
    (norm_in("sub/a.safetensors"), f"weight_map of '{NORM}' must be a file name, got 'sub/a.safetensors'"),
    (norm_in(""), f"weight_map of '{NORM}' must be a file name, got ''"),
    (norm_in(5), f"'weight_map.{NORM}' must be a string, got 5"),
    (norm_in(None), f"key 'weight_map.{NORM}' is missing"),
    (norm_in(INDEX), "the header claims .* not a safetensors file"),  # which names itself
    (sharded(lambda shards, _: shards.update(more="a.safetensors")), "'more' is not in a.safetensors"),
    (
        sharded(lambda shards, _: shards.update({NAMES[-1]: "a.safetensors"})),
        f"'{NAMES[-1]}' is not in a.saf",
    ),
    (both(sharded(), outside), "weight_map of '.*' is 'b.safetensors', a link out of the directory, to /"),
    (both(remove(WEIGHTS), link(INDEX, INDEX)), LOOP),
    (index('{"weight_map": {}, "weight_map": {}}'), "'weight_map' is there twice"),
    (index('{"weight_map": {"a": "b", "a": "c"}}'), "'weight_map.a' is there twice"),
    (index("[]"), "must hold a JSON object"),
    (index("{}"), "key 'weight_map' is missing"),
    (index('{"weight_map": []}'), r"'weight_map' must be an object, got \[\]"),
    (index('{"weight_map": '), "not valid JSON"),
]
SHARDS: Rows = [
    (both(sharded(), remove("b.safetensors")), "No such file or directory"),
    (both(sharded(), link("b.safetensors", INDEX)), "the header claims .* not a safetensors"),
    (
        both(sharded(), link("b.safetensors", "a.safetensors")),
        f"tensor '{EMBEDDING}' is in another shard too",
    ),
    (both(sharded(), twice), f"tensor '{NORM}' is in another shard too"),
]
CONFIGS: Rows = [
    (hidden_size("NaN"), "not valid JSON: .*'\"hidden_size\": N'"),
    (hidden_size("1e999"), "not valid JSON: .*'1e999'"),
    (hidden_size("-1"), "'hidden_size' must be a whole number from 1 to 16777216, got -1"),
    (hidden_size("true"), "'hidden_size' must be a whole number from 1 to 16777216, got true"),
    (hidden_size('"32"'), "'hidden_size' must be a whole number from 1 to 16777216, got \"32\""),
    (hidden_size("[32]"), r"'hidden_size' must be a whole number from 1 to 16777216, got \[32\]"),
    (hidden_size(str(ALL_BITS)), f"'hidden_size' must be a whole number from 1 to 16777216, got {ALL_BITS}"),
    (config(num_hidden_layers=10**9), "'num_hidden_layers' must be .* from 1 to 4096, got 1000000000"),
    (config(vocab_size=1 << 31), "'vocab_size' must be .* from 1 to 16777216, got 2147483648"),
    (config(max_position_embeddings=1 << 31), "'max_position_embeddings' must be .*, got 2147483648"),
    (config(tie_word_embeddings=1), "'tie_word_embeddings' must be true or false, got 1"),
    (config(architectures="LlamaForCausalLM"), "'architectures' must be a list of strings, got \"Llama"),
    (
        config(rope_scaling={"rope_type": "longrope", "short_factor": [0.0] * 8, "long_factor": [1.0] * 8}),
        "'rope_scaling.short_factor' must hold numbers above 0, at most 1e9; got 0",
    ),
    (write("config.json", '{"hidden_size": 64, "hidden_size": 32}'), "'hidden_size' is there twice"),
    (config(rope_scaling=5), "'rope_scaling' must be an object, got 5"),
    (config(rope_scaling={"type": "linear", "factor": 0}), "'rope_scaling.factor' must be a number above 0"),
    (config(quantization_config=[]), r"'quantization_config' must be an object, got \[\]"),
    (write("config.json", b'{"a": "\xff"}'), "not valid JSON: .*ill-formed UTF-8"),
]
EOS_IN_CONFIG: Rows = [
    (both(remove(GENERATION), config(eos_token_id=260)), "'eos_token_id' must hold .* 0 to 259, got 260"),
]
EOS_IDS: Rows = [
    (set_keys(GENERATION, eos_token_id=260), "'eos_token_id' must hold whole numbers from 0 to 259, got 260"),
    (set_keys(GENERATION, eos_token_id=-1), "'eos_token_id' must hold whole numbers from 0 to 259, got -1"),
    (set_keys(GENERATION, eos_token_id=[True]), "'eos_token_id' must hold whole numbers .*, got true"),
    (link(GENERATION, GENERATION), LOOP),
    (set_keys(GENERATION, eos_token_id="2"), "'eos_token_id' must hold whole numbers .*, got \"2\""),
]
SAMPLING_DEFAULTS: Rows = [
    (write(GENERATION, "[]"), "must hold a JSON object"),
    (set_keys(GENERATION, temperature="x"), 'temperature must be a number, got "x"'),
    (set_keys(GENERATION, top_k=1e30), r"top_k must be an integer from .*, got 1e\+30"),
    (set_keys(GENERATION, max_new_tokens=1 << 40), "max_new_tokens as max_tokens must be an integer from"),
    (write(GENERATION, '{"temperature": 1e999}'), "not valid JSON: .*'1e999'"),
]
PACKED: Rows = [
    (packed(version=2), "version is 2; this Quire reads 1"),
    (packed(rank=1), "rank must be an integer from 0 to 0"),
    (packed(world_size=1 << 31), "world_size must be an integer from 1 to 65536"),
    (packed(dtype="int8"), "dtype must be float32, float16 or bfloat16"),
    (packed(more=1), "more is not a key we know"),
    (packed(sections=[1 << 50] * 2), f"the header describes {1 << 51} bytes of data, .*: it is truncated"),
    (packed(lambda head: head["sections"].append(0)), "is packed for another .* 9 sections, .* wants 8"),
    (packed(lambda head: head["sections"].insert(0, 0)), ".*section 0 has 0 bytes, and one of .* is wanted"),
    (packed(lambda head: head["tensors"].append(head["tensors"][0])), f"tensors has '{EMBEDDING}' twice"),
    (packed(lambda head: head["tensors"][0].update(shape=[HUGE])), r"tensors\[0\].shape\[0\] must be an int"),
    (both(packed(), config(hidden_size=64)), ".*section 0 has .* bytes, and one of .* bytes is wanted"),
    (packed_bytes(lambda data: data[:-1]), "the header describes .* bytes of data, .*: it is truncated"),
    (packed_bytes(lambda data: b"QUIREPAX" + data[8:]), "does not begin as a file of packed weights"),
    (packed_bytes(lambda data: data[:8] + b"\xff" * 8 + data[16:]), f"the header claims {ALL_BITS} bytes"),
]
TOKENIZER_JSON: Rows = [
    (write(TOKENIZER, "[]"), "the document must be an object"),
    (write(TOKENIZER, "{}"), "model is missing"),
    (bpe({"new": 1 << 22}), "model.vocab gives 'new' the id 4194304; ids are integers from 0 to"),
    (bpe({"new": -1}), "model.vocab gives 'new' the id -1; ids are integers from 0 to"),
    (bpe({"new": True}), "model.vocab gives 'new' the id true; ids are integers from 0 to"),
    (bpe({"new": 5}), "model.vocab gives the id 5 to both '.' and 'new'"),
    (bpe(merges=[[]]), r"model.merges \[0\] must be a string or a pair of strings"),
    (bpe(merges=[["a", "none"]]), r"model.merges \[0\] needs the token 'none', which is not in model.vocab"),
    (added(id=1 << 31), r"added_tokens\[0\].id must be an integer from 0 to 2147483647"),
    (added(id="5"), r"added_tokens\[0\].id must be an integer from 0 to 2147483647"),
    (added(content=5), r"added_tokens\[0\].content must be a string"),
    (around(1 << 31), r"post_processor.special_tokens.x.ids\[0\] must be an integer from 0 to 2147483647"),
    (split("((a{1000}){1000}){1000}"), "pre_tokenizer.pattern.Regex .*too large"),
    (split("(" * 1000), "pre_tokenizer.pattern.Regex .*nesting deeper than 100"),
    (sections(model={"type": "Unigram", "unk_id": 5, "vocab": [["a", 0]]}), "model.unk_id must be .* to 0"),
]
VOCAB_JSON: Rows = [
    (vocab_and_merges("[]"), "model.vocab must be an object"),
    (vocab_and_merges('{"a": 4194304}'), "model.vocab gives 'a' the id 4194304; ids are integers from"),
    (vocab_and_merges('{"a": 0, "b": 0}'), "model.vocab gives the id 0 to both 'b' and 'a'"),
    (vocab_and_merges('{"a": 0}', "a none\n"), r"model.merges \[0\] needs the token 'none', which is not in"),
    (vocab_and_merges('{"a": 0}', "a\n"), r"model.merges \[0\] is 'a', which is not two tokens"),
]
ADDED_TOKENS: Rows = [
    (both(vocab_and_merges("{}"), set_keys(TOKENIZER_CONFIG, added_tokens_decoder=tokens)), said)
    for tokens, said in (
        ([], "added_tokens_decoder: .* must be an object"),
        ({"2147483648": {}}, "added_tokens_decoder: .* has the key '2147483648'; token ids are expected"),
        ({"-1": {}}, "added_tokens_decoder: .* has the key '-1'; token ids are expected"),
        ({"9": 5}, "added_tokens_decoder: 9 must be an object"),
        ({"9": {"content": 5}}, "added_tokens_decoder: 9.content must be a string"),
    )
]
SENTENCEPIECES: Rows = [
    (sentencepiece(piece(b"a")), r"pieces\[2\] is 'a' a second time"),
    (sentencepiece(piece(b"b", float("nan"))), r"pieces\[2\] has the score nan"),
    (sentencepiece(piece(b"b", 0, 9)), r".* pieces\[2\].type is 9"),
    (sentencepiece(b"\x0a" + b"\xff" * 8 + b"\x7f"), f".* a field of {HUGE - 1} bytes where 0 are left"),
    (sentencepiece(b"\xff" * 20), ".* an integer of more than 64 bits"),
    (sentencepiece(b"\x1a\x06\x12\x04" + b"\xff" * 4), ".*charsmap says .* takes 4294967295 of 0"),
]
RANKS: Rows = [
    (instead({"gpt2.tiktoken": "YQ== 4194304\n"}), "line 1 is not a token in base64 and its rank"),
    (instead({"gpt2.tiktoken": "YQ== 0\nYQ== 1\n"}), "the token of rank 1 is there a second time"),
    (ranks({"2147483647": {"content": "x"}}), "the special token 'x' with the id 2147483647 .* 4194304"),
    (ranks({"0": {"content": "x"}}), "the special token 'x' with the id 0 is there already"),
]
TEKKEN: Rows = [
    (tekken(default_vocab_size=1 << 31), "config.default_vocab_size must be an integer from 2 to 4194304"),
    (tekken(default_num_special_tokens=9), "config.default_vocab_size must be an integer from 9 to"),
    (tekken(pattern="("), r"pre_tokenizer.*Regex .*'\(' without '\)'"),
    (both(remove(TOKENIZER), link("tekken.json", "tekken.json")), LOOP),
    (tekken(default_num_special_tokens=1 << 20), "config.default_num_special_tokens must be .* to 65536"),
    (tekken(vocab={}), "vocab must be an array"),
    (tekken(special_tokens=[{"rank": 5, "token_str": "x"}]), r"special_tokens\[0\].rank must be .* 0 to 1"),
    (tekken(special_tokens=[{"rank": i, "token_str": "x"} for i in (0, 1)]), "the special token 'x'"),
]
OTHER_TOKENIZER_CONFIGS: Rows = [
    (
        both(vocab_and_merges("{}"), set_keys(TOKENIZER_CONFIG, tokenizer_class=5)),
        "tokenizer_class must be a",
    ),
    (both(vocab_and_merges("{}"), write(TOKENIZER_CONFIG, "[]")), "the document must be an object"),
]
NO_TOKENIZER: Rows = [(remove(TOKENIZER), "no such file")]
CHAT_TEMPLATES: Rows = [
    (set_keys(TOKENIZER_CONFIG, chat_template=5), "chat_template must be a string"),
    (set_keys(TOKENIZER_CONFIG, chat_template=[5]), r"chat_template\[0\] must be an object"),
    (set_keys(TOKENIZER_CONFIG, chat_template=[{"name": "default"}]), r"chat_template\[0\].template is"),
    (set_keys(TOKENIZER_CONFIG, bos_token={"content": 5}), "bos_token.content must be a string"),
    (write(TOKENIZER_CONFIG, "[]"), "the document must be an object"),
    (link(TOKENIZER_CONFIG, TOKENIZER_CONFIG), LOOP),
    (set_keys(TOKENIZER_CONFIG, chat_template="{% for %}"), "chat_template: line 1: expected a name"),
]
TEMPLATE_FILES: Rows = [
    (link("chat_template.jinja", "chat_template.jinja"), LOOP),
    (write("chat_template.jinja", "{% for %}"), "chat_template: line 1: expected a name"),
]
GGUF_FILES: Rows = [
    (gguf(tensors=HUGE), f"claims {HUGE} tensors, and has"),
    (gguf(tensors=12), "tensor '' has 0 dimensions"),
    (gguf(tensors=10), "tensor 'model.layers.0.mlp.down_proj.weight' is missing"),
    (gguf(pairs=HUGE), f"claims {HUGE} keys, and has"),
    (gguf(pairs=65537), "claims 65537 keys, and has"),
    (gguf({"x": array(8, [], HUGE)}), f"'x' has {HUGE} elements of string, for which the file has"),
    (gguf({"x": struct.pack("<IQ", 8, 1 << 62)}), f"'x' has {1 << 62} bytes; at most 16777216 are read"),
    (gguf({"x": struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5}), "'x' is nested more than 4 deep"),
    (gguf({"general.alignment": u32(3)}), "'general.alignment' must be a power of two, got 3"),
    (gguf({"llama.block_count": u32(0)}), "'llama.block_count' must be from 1 to 2147483647, got 0"),
    (gguf({"llama.block_count": u32(2)}), "tensor 'model.layers.1.input_layernorm.weight' is missing"),
    (gguf({"llama.embedding_length": u32(1 << 31)}), "'llama.embedding_length' must be .*, got 2147483648"),
    (gguf({"llama.attention.layer_norm_rms_epsilon": f32(float("nan"))}), "'llama.*_epsilon' must be finite"),
    (
        gguf({"tokenizer.ggml.token_type": array(5, [bytes(4)])}),
        ".*token_type' has 1 elements, there are 260",
    ),
    (gguf({"tokenizer.ggml.merges": array(8, [characters("a none")])}), r".*merges'\[0\] is 'a none';"),
    (gguf({"tokenizer.ggml.eos_token_id": u32(260)}), "'eos_token_id' must hold .* from 0 to 259, got 260"),
    (gguf(dims=[]), f"tensor '{QUERY}' has 0 dimensions; 1 to 4 are expected"),
    (gguf(dims=[1 << 62, 1 << 62]), f"tensor '{QUERY}' has a dimension of {1 << 62}; its"),
    (gguf(dims=[32, 31]), f"tensor '{QUERY}' has 31 rows; 2 heads of an even size are expected"),
    (gguf(dims=[16, 32]), r"tensor '.*q_proj.weight' has shape \[32, 16\], the config asks for \[32, 32\]"),
    (gguf(kind=99), f"tensor '{QUERY}' has the type 99, which is not read; read are F32"),
    (gguf(position=HUGE), f"tensor '{QUERY}' has 4096 bytes at {HUGE} of the data, the file has"),
    (gguf(position=1), f"tensor '{QUERY}' begins at 1 of the data, no multiple of 32"),
    (gguf(position=0), f"tensors 'token_embd.weight' and '{QUERY}' overlap"),
    (gguf(cut=1), "tensor 'blk.0.ffn_down.weight' has 4096 bytes .*: it is truncated"),
]

# By the door and the file that is named.
ROWS: dict[tuple[Door, str], Rows] = {
    (plan, WEIGHTS): ONE_FILE,
    (plan, INDEX): INDICES,
    (plan, "b.safetensors"): SHARDS,
    (plan, "config.json"): CONFIGS,
    (load, "config.json"): EOS_IN_CONFIG,
    (load, GENERATION): EOS_IDS,
    (defaults, GENERATION): SAMPLING_DEFAULTS,
    (load, "x.quire"): PACKED,
    (tokenize, TOKENIZER): TOKENIZER_JSON,
    (tokenize, "vocab.json"): VOCAB_JSON,
    (tokenize, TOKENIZER_CONFIG): ADDED_TOKENS + OTHER_TOKENIZER_CONFIGS,
    (tokenize, "tokenizer.model"): SENTENCEPIECES,
    (tokenize, "gpt2.tiktoken"): RANKS,
    (tokenize, "tekken.json"): TEKKEN,
    (chat, TOKENIZER): NO_TOKENIZER,
    (chat, TOKENIZER_CONFIG): CHAT_TEMPLATES,
    (chat, "chat_template.jinja"): TEMPLATE_FILES,
    (load_gguf, "x.gguf"): GGUF_FILES,
}
CASES = [
    pytest.param(door, file, damage, said, id=f"{door.__name__}-{file}-{i}")
    for (door, file), rows in ROWS.items()
    for i, (damage, said) in enumerate(rows)
]


@pytest.mark.parametrize(("door", "file", "damage", "said"), CASES)
def test_what_is_wrong_is_named(tiny_model: Path, door: Door, file: str, damage: Damage, said: str) -> None:
    damage(tiny_model)
    assert re.match(f"{re.escape(file)}: {said}", refusal(tiny_model, door))


def test_ids_beyond_the_vocabulary_reach_no_model(tiny_model: Path) -> None:
    around(10**6)(tiny_model)
    llm = quire.LLM(tiny_model, device="cpu", num_threads=1)
    with pytest.raises(ValueError, match=r"prompt_token_ids\[0\] is 1000000; ids go from 0 to 259"):
        llm.generate("a", use_tqdm=False)


def test_two_tokenizers_are_not_chosen_from(tiny_model: Path) -> None:
    instead({"gpt2.tiktoken": "", "qwen.tiktoken": ""})(tiny_model)
    with pytest.raises(ValueError, match=r"model: has .*gpt2\.tiktoken and .*qwen\.tiktoken; leave one"):
        tokenize(tiny_model)


def test_links_of_the_hubs_cache_are_followed(tiny_model: Path, tmp_path: Path) -> None:
    sharded()(tiny_model)
    snapshot = as_hub_snapshot(tiny_model, tmp_path)
    assert load(snapshot) and encode(snapshot)
