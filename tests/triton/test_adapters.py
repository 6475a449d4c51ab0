"""Adapters (LoRA): named by requests, listed in multi_lora.json, loaded and unloaded while requests run."""

from __future__ import annotations

import base64
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from lora_adapters import write_adapter
from quire import LLM, LoRARequest, SamplingParams
from triton_fixtures import ENGINE
from triton_requests import error_of, infer, open_stream, stream_infer
from triton_server import Answer, TritonServer, poll

ADAPTERS = Path(__file__).resolve().parents[1] / "python/data/adapters"
NAMES = ("", "sailor", "json")  # "": the model itself
PROMPT = "Once upon a time"
QUESTION = json.dumps([{"role": "user", "content": "Who are you?"}])
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
ONLY_NEW = {"exclude_input_in_output": True}
LORA = {**ENGINE, "enable_lora": "true", "max_loras": 2}
Expected = Callable[[str], str]


@pytest.fixture(scope="module")
def llm(demo_model: Path) -> LLM:
    return LLM(demo_model, num_threads=1, enable_lora=True, max_loras=2)


def lora_request(name: str) -> LoRARequest | None:
    return LoRARequest(name, 0, ADAPTERS / name) if name else None


@pytest.fixture(scope="module")
def expected(llm: LLM) -> dict[str, str]:
    """What quire.LLM continues PROMPT with, by adapter."""
    texts = {}
    for name in NAMES:
        [answer] = llm.generate(
            [PROMPT], SamplingParams(**GREEDY), use_tqdm=False, lora_request=lora_request(name)
        )
        texts[name] = answer.outputs[0].text
    assert len(set(texts.values())) == 3
    return texts


def write_model(
    server: TritonServer, name: str, parameters: dict[str, Any], loras: object = None, **options: Any
) -> Path:
    """Returns the version directory, where multi_lora.json is if there are any."""
    server.write_model(name, parameters, **options)
    directory = server.repository / name / "1"
    if loras is not None:
        text = loras if isinstance(loras, str) else json.dumps(loras)
        (directory / "multi_lora.json").write_text(text)
    return directory


@pytest.fixture(scope="module")
def ship(server: TritonServer, demo_model: Path) -> Iterator[TritonServer]:
    """``ship`` (decoupled) and ``ship_sync``; a path of theirs is relative to the file."""
    for name in ("ship", "ship_sync"):
        loras = {"sailor": str(ADAPTERS / "sailor"), "json": "mine/json"}
        parameters = {"model": demo_model, **LORA}
        directory = write_model(server, name, parameters, loras, decoupled=name == "ship")
        (directory / "mine").symlink_to(ADAPTERS)
        server.load(name)
    yield server
    for name in ("ship", "ship_sync"):
        server.unload(name)


# ---- Requests ----


@pytest.mark.parametrize("place", ["input", "parameter", "sampling_parameters", "everywhere"])
def test_a_request_names_an_adapter(
    ship: TritonServer, client: Any, expected: dict[str, str], place: str
) -> None:
    for name in NAMES:
        fields = {"lora_name": name}
        inside = fields if place in {"sampling_parameters", "everywhere"} else {}
        inputs = {"text_input": PROMPT, **ONLY_NEW, "sampling_parameters": {**GREEDY, **inside}}
        if place in {"input", "everywhere"}:
            inputs |= fields
        parameters = fields if place in {"parameter", "everywhere"} else {}
        assert infer(client, "ship_sync", inputs, parameters).text == expected[name]


def test_the_generate_endpoints_take_the_name(ship: TritonServer, expected: dict[str, str]) -> None:
    fields = {"text_input": PROMPT, "lora_name": "sailor", **ONLY_NEW, **GREEDY}
    assert ship.generate("ship", **fields)["text_output"] == expected["sailor"]
    events = ship.generate_stream("ship", **fields)
    assert "".join(event["text_output"] for event in events) == expected["sailor"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_batch_has_the_model_and_both_adapters(
    ship: TritonServer, expected: dict[str, str], stream: bool
) -> None:
    names = NAMES * 4
    texts = dict.fromkeys(map(str, range(len(names))), "")
    with open_stream(ship.grpc_address) as opened:
        for i, name in enumerate(names):
            inputs = {"text_input": PROMPT, "stream": stream, "sampling_parameters": GREEDY}
            if not stream:
                inputs |= ONLY_NEW
            opened.send("ship", {**inputs, "lora_name": name}, request_id=str(i))
        num_unfinished = len(names)
        while num_unfinished:
            response = opened.next()
            texts[response.request_id] += response.text if response.outputs else ""
            num_unfinished -= response.final
    assert list(texts.values()) == [expected[name] for name in names]


def test_conversations_have_adapters(ship: TritonServer, client: Any, llm: LLM) -> None:
    for name in NAMES:
        [answer] = llm.chat(
            json.loads(QUESTION),
            SamplingParams(**GREEDY),
            use_tqdm=False,
            lora_request=lora_request(name),
        )
        inputs = {"messages": QUESTION, "return_message": True, "sampling_parameters": GREEDY}
        told = infer(client, "ship_sync", {**inputs, "lora_name": name}).outputs
        assert told["text_output"] == [answer.outputs[0].text]
        assert json.loads(told["message"][0])["content"] == answer.outputs[0].text
        beginning = {"": "I am Quire", "sailor": "Ahoy! I am Quire", "json": '{"answer": "I am Quire'}
        assert answer.outputs[0].text.startswith(beginning[name])


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "input and JSON": (
        {"lora_name": "sailor", "sampling_parameters": {"lora_name": "json"}},
        {},
        ["'sailor' in the input", "'json' in sampling_parameters"],
    ),
    "input and parameter": ({"lora_name": "sailor"}, {"lora_name": "json"}, ["lora_name", "the parameter"]),
    "parameter and JSON": (
        {"sampling_parameters": {"lora_name": "x"}},
        {"lora_name": "json"},
        ["'json' in the parameter", "'x' in sampling_parameters"],
    ),
    "unknown": ({"lora_name": "sailr"}, {}, ["sailr", "has sailor, json", "multi_lora.json"]),
    "unknown in JSON": ({"sampling_parameters": {"lora_name": "SAILOR"}}, {}, ["SAILOR", "sailor, json"]),
    "unknown of a conversation": ({"lora_name": "x", "messages": QUESTION}, {}, ["'x'", "sailor, json"]),
    "a number": ({"sampling_parameters": {"lora_name": 5}}, {}, ["lora_name", "5"]),
    "a number as a parameter": ({}, {"lora_name": 5}, ["lora_name", "string"]),
    "no text": ({"lora_name": b"\xff"}, {}, ["lora_name", "UTF-8"]),
    "long": ({"lora_name": "x" * 100_000}, {}, ["lora_name", "xxx...", "sailor, json"]),
    "a path alone": ({}, {"lora_path": "/x"}, ["lora_path", "load_lora"]),
    "loading": ({}, {"load_lora": True, "lora_name": "x", "lora_path": "/"}, ["enable_lora_control"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_name_is_refused(ship: TritonServer, client: Any, case: str) -> None:
    inputs, parameters, words = BAD[case]
    prompt = {} if "messages" in inputs else {"text_input": PROMPT}
    error = error_of(client, "ship_sync", {**prompt, **inputs}, parameters)
    assert "400" in error or "INVALID_ARGUMENT" in error
    assert all(word in error for word in words), error
    assert len(error) < 500


def test_a_model_without_adapters_says_how_it_gets_them(server: TritonServer, client: Any) -> None:
    for prompt in ({"text_input": PROMPT}, {"messages": QUESTION}):
        error = error_of(client, "sync", {**prompt, "lora_name": "sailor"})
        assert "'sailor'" in error and "enable_lora" in error


# ---- multi_lora.json ----

SAILOR = str(ADAPTERS / "sailor")
FILES: dict[str, tuple[object, list[str]]] = {
    "no JSON": ('{"a": ', ["is not valid JSON"]),
    "nothing": ("", ["is not valid JSON"]),
    "trailing": ("{} {}", ["is not valid JSON"]),
    "no UTF-8": ('{"\udcff": "x"}', ["is not valid JSON"]),
    "a list": ([SAILOR], ["an object of names and paths", "got an array"]),
    "a string": ('"x"', ["got a string"]),
    "a number": ({"sailor": 5}, ["'sailor' must be a path", "got 5"]),
    "null": ({"sailor": None}, ["'sailor'", "got null"]),
    "an object": ({"sailor": {"path": SAILOR}}, ["'sailor'", "got an object"]),
    "twice": (f'{{"a": "{SAILOR}", "a": "{SAILOR}"}}', ["'a' is there twice"]),
    "not there": ({"a": "nowhere/at/all"}, ["'a'", "no directory", "/1/nowhere/at/all"]),
    "an empty path": ({"a": ""}, ["'a' must be the path"]),
    "half a path": ({"a": SAILOR + "\0x"}, ["'a' must be the path"]),
    "an empty name": ({"": SAILOR}, ["''", "lora_name must have"]),
    "no adapter": ({"good": SAILOR, "bad": "."}, ["'bad'", "adapter_config.json"]),
    "too high a rank": ({"good": SAILOR, "high": "high"}, ["'high'", "max_lora_rank"]),
    "deep": ('{"a": ' + "[" * 500_000, ["'a'", "got an array"]),
    "deep and nothing else": ('{"a":' * 500_000, ["'a'", "got an object"]),
    "large": ('{"a": "' + "x" * 3_000_000 + '"}', ["'a'", "no directory"]),
    "huge": ('{"a": "' + "x" * 5_000_000 + '"}', ["larger than"]),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_fails_the_load(server: TritonServer, demo_model: Path, case: str) -> None:
    content, words = FILES[case]
    directory = write_model(server, "bad_file", {"model": demo_model, **LORA})
    if "high" in words[0]:
        write_adapter(demo_model, directory / "high", 1, r=17)
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / "multi_lora.json").write_bytes(text.encode(errors="surrogateescape"))
    answer = server.try_to_load("bad_file")
    shutil.rmtree(server.repository / "bad_file")
    assert answer.status == 400
    assert all(word in answer.body for word in [*words, "bad_file/1/multi_lora.json"]), answer.body
    assert len(answer.body) < 1000


def test_the_file_needs_enable_lora(server: TritonServer, demo_model: Path) -> None:
    write_model(server, "unaware", {"model": demo_model, **ENGINE}, {"sailor": SAILOR})
    body = server.try_to_load("unaware").body
    assert "unaware/1/multi_lora.json" in body and "enable_lora" in body
    shutil.rmtree(server.repository / "unaware")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"enable_lora_control": "true"}, ["enable_lora_control", "enable_lora too"]),
        ({"enable_lora": "true", "lora_root": "/tmp"}, ["lora_root", "enable_lora_control"]),
        ({**LORA, "enable_lora_control": "yes"}, ["enable_lora_control", "yes"]),
        ({**LORA, "enable_lora_control": "true", "lora_root": "nowhere"}, ["lora_root", "/1/nowhere"]),
        ({**LORA, "multi_lora": "nowhere.json"}, ["/1/nowhere.json", "no such file"]),
        ({**LORA, "multi_lora": "."}, ["no such file"]),
    ],
)
def test_bad_parameters_fail_the_load(
    server: TritonServer, demo_model: Path, parameters: dict[str, Any], words: list[str]
) -> None:
    write_model(server, "bad_parameter", {"model": demo_model, **ENGINE, **parameters})
    answer = server.try_to_load("bad_parameter")
    assert answer.status == 400
    assert all(word in answer.body for word in words), answer.body


def test_the_file_may_be_elsewhere_and_a_reload_reads_it_again(
    server: TritonServer, demo_model: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    """Adapters are read as the model is loaded, more of them than memory is to hold."""
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps({"s": SAILOR, "j": os.path.relpath(ADAPTERS / "json", tmp_path)}))
    parameters = {"model": demo_model, **LORA, "max_loras": 1, "multi_lora": file}
    directory = write_model(server, "elsewhere", parameters)
    server.load("elsewhere")

    def answer(name: str) -> Any:
        fields = {"text_input": PROMPT, "lora_name": name, **GREEDY, **ONLY_NEW}
        return server.request("v2/models/elsewhere/generate", fields)

    with ThreadPoolExecutor(6) as pool:
        answers = pool.map(lambda name: answer(name).json()["text_output"], ["s", "j", ""] * 4)
        assert list(answers) == [expected["sailor"], expected["json"], expected[""]] * 4
    file.write_text(json.dumps({"j": SAILOR}))
    (directory / "touched").touch()
    server.load("elsewhere")
    assert answer("j").json()["text_output"] == expected["sailor"]
    assert "has j;" in answer("s").body
    server.unload("elsewhere")


def test_a_changed_file_in_the_version_directory_is_reason_enough_to_load_again(
    server: TritonServer, demo_model: Path, expected: dict[str, str]
) -> None:
    directory = write_model(server, "fleet", {"model": demo_model, **LORA}, {"a": SAILOR})
    server.load("fleet")
    with open_stream(server.grpc_address) as stream:
        long = {"temperature": 0, "max_tokens": 200, "ignore_eos": True, "lora_name": "a"}
        stream.send("fleet", {"text_input": PROMPT, "stream": True, "sampling_parameters": long})
        first = stream.next()
        (directory / "multi_lora.json").write_text(json.dumps({"b": SAILOR}))
        server.load("fleet")
        fields = {"text_input": PROMPT, "lora_name": "b", **GREEDY, **ONLY_NEW}
        assert server.generate("fleet", **fields)["text_output"] == expected["sailor"]
        text = first.text + "".join(r.text for r in stream.until_final())
    assert text.startswith(expected["sailor"])
    server.unload("fleet")


def test_a_load_may_bring_the_file_along(
    server: TritonServer, demo_model: Path, expected: dict[str, str]
) -> None:
    """In the server's own way, which gives the backend a directory with nothing but such files."""
    given = {"model": demo_model, **LORA}
    config = {"backend": "quire", "parameters": {k: {"string_value": str(v)} for k, v in given.items()}}
    file = base64.b64encode(json.dumps({"brought": SAILOR}).encode()).decode()
    parameters = {"config": json.dumps(config), "file:1/multi_lora.json": file}
    assert server.request("v2/repository/models/brought/load", {"parameters": parameters}).status == 200
    fields = {"text_input": PROMPT, "lora_name": "brought", **GREEDY, **ONLY_NEW}
    assert server.generate("brought", **fields)["text_output"] == expected["sailor"]
    server.unload("brought")


def test_metrics_tell_which_adapters_requests_have(ship: TritonServer) -> None:
    def told() -> list[str]:
        lines = ship.metrics().splitlines()
        return [line for line in lines if line.startswith("quire:lora_requests_info{") and '"ship"' in line]

    def shows(running: str) -> bool:
        [line] = told()
        labels = ('max_lora="2"', 'waiting_lora_adapters=""', f'running_lora_adapters="{running}"')
        return all(label in line for label in labels)

    poll("no adapter", lambda: shows(""))
    sampling = {"max_tokens": 2000, "ignore_eos": True}
    with open_stream(ship.grpc_address) as stream:
        for name in ("sailor", "json"):
            fields = {"text_input": PROMPT, "lora_name": name, "stream": True, "request_id": name}
            stream.send("ship", {**fields, "sampling_parameters": sampling})
        poll("two adapters", lambda: shows("json,sailor"))
        for name in ("sailor", "json"):
            assert ship.cancel("ship", name).status == 200
        poll("none again", lambda: shows(""))
    assert 1.7e9 < float(told()[0].split()[-1]) < 1e11  # seconds since 1970


# ---- Control ----


def control(server: TritonServer, model: str, **fields: Any) -> Answer:
    return server.request(f"v2/models/{model}/generate", fields)


def names_of(answer: Answer) -> list[str]:
    assert answer.status == 200, answer
    return [lora["lora_name"] for lora in json.loads(answer.json()["text_output"])]


@pytest.fixture(scope="module")
def harbour(
    server: TritonServer, demo_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A lora_root with both adapters, of the models ``harbour`` and ``harbour_sync``."""
    root = tmp_path_factory.mktemp("root") / "adapters"
    shutil.copytree(ADAPTERS, root)
    (root / "empty").mkdir()
    for name in ("harbour", "harbour_sync"):
        parameters = {"model": demo_model, **LORA, "max_cpu_loras": 8}
        parameters |= {"enable_lora_control": "true", "lora_root": root}
        write_model(server, name, parameters, decoupled=name == "harbour")
        server.load(name)
    yield root
    for name in ("harbour", "harbour_sync"):
        server.unload(name)


def test_an_adapter_is_loaded_and_unloaded(
    server: TritonServer, harbour: Path, client: Any, expected: dict[str, str]
) -> None:
    """With the stock client: all is in parameters, so there are no inputs."""
    generate = {"text_input": PROMPT, "sampling_parameters": GREEDY, "lora_name": "ahoy", **ONLY_NEW}
    assert "none yet" in error_of(client, "harbour_sync", generate)
    load = {"load_lora": True, "lora_name": "ahoy", "lora_path": "sailor"}
    for _ in range(2):  # a client may try again
        told = infer(client, "harbour_sync", {}, load)
        [lora] = json.loads(told.text)
        assert lora == {"lora_name": "ahoy", "lora_path": str(harbour / "sailor"), "rank": 4}
    assert infer(client, "harbour_sync", generate).text == expected["sailor"]
    other = {**load, "lora_path": str(harbour / "json")}
    assert "remove that one first" in error_of(client, "harbour_sync", {}, other)
    assert len(json.loads(infer(client, "harbour_sync", {}, {"list_loras": True}).text)) == 1
    [lora] = json.loads(infer(client, "harbour_sync", {}, {**other, "load_inplace": True}).text)
    assert lora["lora_path"] == str(harbour / "json")
    assert infer(client, "harbour_sync", generate).text == expected["json"]
    unload = {"unload_lora": True, "lora_name": "ahoy"}
    assert infer(client, "harbour_sync", {}, unload).text == "[]"
    assert "404" in (error := error_of(client, "harbour_sync", {}, unload)) or "NOT_FOUND" in error
    assert "none yet" in error_of(client, "harbour_sync", generate)
    assert infer(client, "harbour_sync", {}, other).text
    assert infer(client, "harbour_sync", generate).text == expected["json"]
    infer(client, "harbour_sync", {"lora_name": "ahoy"}, {"unload_lora": True})


def test_a_decoupled_model_is_told_by_a_stream_or_generate(
    server: TritonServer, harbour: Path, expected: dict[str, str]
) -> None:
    fields = {"load_lora": True, "lora_name": "s", "lora_path": "sailor"}
    [told] = stream_infer(server.grpc_address, "harbour", {}, fields)
    assert told.final and told.outputs["finish_reason"] == ["stop"]
    assert names_of(control(server, "harbour", list_loras=True)) == ["s"]
    assert control(server, "harbour", unload_lora=True, lora_name="s").json()["text_output"] == "[]"


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "two": ({"load_lora": True, "unload_lora": True}, ["load_lora or unload_lora", "not both"]),
    "no name": ({"load_lora": True, "lora_path": "sailor"}, ["load_lora needs lora_name"]),
    "no path": ({"load_lora": True, "lora_name": "x"}, ["load_lora needs lora_path"]),
    "a path to unload": ({"unload_lora": True, "lora_name": "x", "lora_path": "y"}, ["'lora_path'"]),
    "in place to unload": (
        {"unload_lora": True, "lora_name": "x", "load_inplace": True},
        ["'load_inplace'"],
    ),
    "no bool": (
        {"load_lora": True, "lora_name": "x", "lora_path": "sailor", "load_inplace": "yes"},
        ["'load_inplace' must be true"],
    ),
    "a name to list": ({"list_loras": True, "lora_name": "x"}, ["'lora_name'"]),
    "a prompt": ({"list_loras": True, "text_input": "x"}, ["request of its own", "'text_input'"]),
    "a field": ({"list_loras": True, "max_tokens": 3}, ["'max_tokens'"]),
    "no flag": ({"load_lora": "yes", "lora_name": "x", "lora_path": "y"}, ["'load_lora' must be true"]),
    "a number for a path": ({"load_lora": True, "lora_name": "x", "lora_path": 5}, ["'lora_path'", "string"]),
    "an empty name": ({"load_lora": True, "lora_name": "", "lora_path": "sailor"}, ["needs lora_name"]),
    "a name of two lines": (
        {"load_lora": True, "lora_name": "a\nb", "lora_path": "sailor"},
        ["control char"],
    ),
    "a long name": ({"load_lora": True, "lora_name": "n" * 600, "lora_path": "sailor"}, ["512"]),
    "no adapter": ({"load_lora": True, "lora_name": "x", "lora_path": "empty"}, ["adapter_config.json"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_control_request_is_refused(server: TritonServer, harbour: Path, case: str) -> None:
    fields, words = REFUSED[case]
    answer = control(server, "harbour", **fields)
    assert answer.status == 400
    assert all(word in answer.body for word in words), answer.body
    assert control(server, "harbour", list_loras=True).json()["text_output"] == "[]"


def test_nothing_outside_of_the_root_is_read(server: TritonServer, harbour: Path, tmp_path: Path) -> None:
    """Nor is it told what is there and what is not."""
    outside = harbour.parent / "adapters_of_others"
    shutil.copytree(harbour / "sailor", outside)
    (harbour / "out").symlink_to(outside)
    (harbour / "up").symlink_to("..")
    (harbour / "within").symlink_to("sailor")
    (harbour / "config_out").mkdir()
    (harbour / "config_out/adapter_config.json").symlink_to(outside / "adapter_config.json")
    (harbour / "config_out/adapter_model.safetensors").symlink_to(
        harbour / "sailor/adapter_model.safetensors"
    )
    paths = ["out", "up/adapters_of_others", "../adapters_of_others", outside, "/", "/etc", "/etc/passwd/x"]
    paths += ["/nowhere", "..", "../../nowhere", "sailor/../../adapters_of_others", "nowhere", "config_out"]
    paths += ["x" * 10_000, "/elsewhere/x", "sailor/adapter_config.json", str(harbour) + "_of_others"]
    for path in paths:
        answer = control(server, "harbour", load_lora=True, lora_name="x", lora_path=str(path))
        assert answer.status == 400
        assert "is no directory in the lora_root" in answer.body, (path, answer.body)
    for path in ("within", "./sailor/", "up/adapters/sailor", harbour / "sailor"):
        answer = control(server, "harbour", load_lora=True, lora_name="x", lora_path=str(path))
        assert names_of(answer) == ["x"], path
    assert control(server, "harbour", unload_lora=True, lora_name="x").status == 200


def test_a_request_keeps_the_adapter_that_is_unloaded(
    server: TritonServer, harbour: Path, expected: dict[str, str]
) -> None:
    control(server, "harbour", load_lora=True, lora_name="brief", lora_path="sailor")
    with open_stream(server.grpc_address) as stream:
        long = {"temperature": 0, "max_tokens": 200, "ignore_eos": True, "lora_name": "brief"}
        stream.send("harbour", {"text_input": PROMPT, "stream": True, "sampling_parameters": long})
        first = stream.next()
        assert names_of(control(server, "harbour", unload_lora=True, lora_name="brief")) == []
        assert control(server, "harbour", text_input=PROMPT, lora_name="brief").status == 400
        # The name is free, for another one.
        control(server, "harbour", load_lora=True, lora_name="brief", lora_path="json")
        fields = {"text_input": PROMPT, "lora_name": "brief", **GREEDY, **ONLY_NEW}
        assert server.generate("harbour", **fields)["text_output"] == expected["json"]
        text = first.text + "".join(r.text for r in stream.until_final())
    assert text.startswith(expected["sailor"])
    control(server, "harbour", unload_lora=True, lora_name="brief")


def test_loading_and_unloading_go_on_beside_requests(
    server: TritonServer, harbour: Path, expected: dict[str, str]
) -> None:
    control(server, "harbour_sync", load_lora=True, lora_name="stays", lora_path="json")
    done = threading.Event()

    def change() -> int:
        count = 0
        while not done.is_set():
            for fields in ({"load_lora": True, "lora_path": "sailor"}, {"unload_lora": True}):
                answer = control(server, "harbour_sync", lora_name="comes and goes", **fields)
                assert answer.status == 200, answer
                count += 1
        return count

    def ask(name: str) -> str:
        fields = {"text_input": PROMPT, "lora_name": name, **GREEDY, **ONLY_NEW}
        answer = control(server, "harbour_sync", **fields)
        assert answer.status == 200 or (name == "comes and goes" and "has stays" in answer.body), answer
        return str(answer.json().get("text_output", "gone"))

    with ThreadPoolExecutor(5) as pool:
        changes = pool.submit(change)
        answers = list(pool.map(ask, ["stays", "", "comes and goes"] * 6))
        done.set()
        assert changes.result() >= 2
    assert answers[::3] == [expected["json"]] * 6
    assert answers[1::3] == [expected[""]] * 6
    assert set(answers[2::3]) <= {expected["sailor"], "gone"}
    control(server, "harbour_sync", unload_lora=True, lora_name="stays")


def test_a_model_may_go_while_adapters_are_loaded(server: TritonServer, demo_model: Path) -> None:
    """Without a lora_root: relative paths start at the version directory."""
    parameters = {"model": demo_model, **LORA, "enable_lora_control": "true"}
    directory = write_model(server, "leaving_port", parameters)
    (directory / "mine").symlink_to(ADAPTERS)
    server.load("leaving_port")
    with ThreadPoolExecutor(8) as pool:
        answers = [
            pool.submit(
                control, server, "leaving_port", load_lora=True, lora_name=str(i), lora_path="mine/sailor"
            )
            for i in range(8)
        ]
        poll("one is there", lambda: any(answer.done() for answer in answers))
        server.unload("leaving_port")
        for answer in answers:
            assert answer.result().status == 200 or "leaving_port" in answer.result().body
