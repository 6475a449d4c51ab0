"""What quire bench sends, when, and what it makes of the times; and its benchmarks without a server."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from quire import Tokenizer
from quire.bench.arrivals import Arrivals, recorded_offsets
from quire.bench.measures import details, measure
from quire.bench.outcomes import Outcome
from quire.bench.tokens import TokenSource
from quire.bench.workloads import WorkloadOptions, make_workload
from quire.cli import main


@pytest.fixture(scope="module")
def tokens(demo_model: Path) -> TokenSource:
    return TokenSource(str(demo_model))


def quire(line: str) -> int:
    return main(["bench", *line.split()])


def workload(tokens: TokenSource, num_more: int = 0, **options: Any) -> list[Any]:
    return make_workload(WorkloadOptions(**options), tokens, num_more)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_numpys_gamma_distribution(burstiness: float) -> None:
    offsets = Arrivals(request_rate=50, burstiness=burstiness).offsets(20_000, Random(1))
    gaps = np.diff([0.0, *offsets])
    expected = np.random.default_rng(1).gamma(burstiness, 1 / (50 * burstiness), 20_000)
    assert offsets[-1] == pytest.approx(20_000 / 50)  # the rate is the one asked for
    assert gaps.std() == pytest.approx(expected.std(), rel=0.05)
    for percent in (30, 50, 90, 99):
        assert np.percentile(gaps, percent) == pytest.approx(np.percentile(expected, percent), rel=0.15)


def test_rates_without_chance() -> None:
    assert Arrivals().offsets(3, Random(0)) == [0, 0, 0]
    assert Arrivals(request_rate=4, burstiness=math.inf).offsets(3, Random(0)) == [0.25, 0.5, 0.75]
    linear = Arrivals(ramp_up_strategy="linear", ramp_up_start_rps=2, ramp_up_end_rps=6)
    assert [linear.rate(i, 5) for i in range(5)] == [2, 3, 4, 5, 6]
    steep = Arrivals(ramp_up_strategy="exponential", ramp_up_start_rps=1, ramp_up_end_rps=16)
    assert [steep.rate(i, 5) for i in range(5)] == pytest.approx([1, 2, 4, 8, 16])
    even = Arrivals(
        burstiness=math.inf, ramp_up_strategy="linear", ramp_up_start_rps=1, ramp_up_end_rps=2
    ).offsets(2, Random(0))
    assert even == [1, 1.5]
    assert recorded_offsets([5, 6, 9], speed=2) == [0, 0.5, 2]


def test_the_same_seed_gives_the_same_load(tokens: TokenSource) -> None:
    first, again, other = (workload(tokens, num_prompts=5, seed=seed) for seed in (3, 3, 4))
    assert first == again != other
    rate = Arrivals(request_rate=3)
    assert rate.offsets(5, Random(3)) == rate.offsets(5, Random(3)) != rate.offsets(5, Random(4))


@pytest.mark.parametrize("form", ["ids", "text"])
def test_prompts_have_just_so_many_tokens(tokens: TokenSource, demo_model: Path, form: str) -> None:
    tokenizer = Tokenizer(demo_model)
    made = workload(
        tokens,
        num_more=2,
        num_prompts=50,
        prompt_form=form,
        random_input_len=40,
        random_output_len=20,
        random_range_ratio=0.5,
        random_prefix_len=10,
    )
    assert len(made) == 52
    prompts = [one.prompt if form == "ids" else tokenizer.encode(one.prompt) for one in made]
    assert [len(prompt) for prompt in prompts] == [one.prompt_len for one in made]
    assert {tuple(prompt[:10]) for prompt in prompts} == {tuple(prompts[0][:10])}
    assert len({tuple(prompt) for prompt in prompts}) == 52
    lengths = {len(prompt) - 10 for prompt in prompts}
    assert 20 <= min(lengths) < 30 and 50 < max(lengths) <= 60
    assert {10, 30} >= {min(max(one.output_len, 10), 30) for one in made if not 10 <= one.output_len <= 30}
    assert not any(tokenizer.is_special(token) for prompt in prompts for token in prompt)


def test_prefixes_are_shared_evenly(tokens: TokenSource) -> None:
    made = workload(
        tokens,
        num_more=1,
        dataset_name="prefix_repetition",
        num_prompts=20,
        prefix_repetition_prefix_len=16,
        prefix_repetition_suffix_len=8,
        prefix_repetition_num_prefixes=4,
    )
    prefixes = [tuple(one.prompt[:16]) for one in made]
    assert sorted(map(prefixes[:20].count, set(prefixes[:20]))) == [5, 5, 5, 5]
    assert prefixes[20] not in prefixes[:20]  # warming up must not fill the cache
    assert {one.prompt_len for one in made} == {24}


def test_sharegpt_from_a_file_and_without(tokens: TokenSource, tmp_path: Path) -> None:
    def turns(*texts: str) -> dict[str, Any]:
        return {"conversations": [{"from": "human", "value": text} for text in texts]}

    good = ["Tell me a story about the sea", "Once upon a time there was a sailor"]
    path = tmp_path / "sharegpt.json"
    path.write_text(
        json.dumps([turns(*good), turns("alone"), turns("a", "b"), turns("word " * 3000, "x y z w")])
    )
    made = workload(tokens, dataset_name="sharegpt", dataset_path=str(path), num_prompts=3)
    assert [one.prompt for one in made] == [good[0]] * 3  # repeated: the others are too short or too long
    assert (made[0].prompt_len, made[0].output_len) == tuple(tokens.count(text) for text in good)
    drawn = workload(tokens, dataset_name="sharegpt", num_prompts=2000)
    assert np.median([one.prompt_len for one in drawn]) == pytest.approx(120, rel=0.15)
    assert np.mean([one.output_len for one in drawn]) == pytest.approx(204, rel=0.15)
    assert all(len(one.prompt) == one.prompt_len <= 1024 for one in drawn)


def test_traces_of_both_forms(tokens: TokenSource, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"arrival": 2.5, "prompt_len": 12, "output_len": 3, "prefix": "a", "prefix_len": 8}\n\n'
        '{"arrival": 1, "prompt_len": 10, "output_len": 2, "prefix": "a", "prefix_len": 8}\n'
        '{"timestamp": 3000, "input_length": 520, "output_length": 4, "hash_ids": [7, 8]}\n'
        '{"timestamp": 4000, "input_length": 600, "output_length": 5, "hash_ids": [7, 9]}\n'
    )
    made = workload(tokens, dataset_name="trace", dataset_path=str(path), num_prompts=9)
    assert [(one.arrival, one.prompt_len, one.output_len) for one in made] == [
        (1, 10, 2),
        (2.5, 12, 3),
        (3, 520, 4),
        (4, 600, 5),
    ]
    assert [len(one.prompt) for one in made] == [10, 12, 520, 600]
    assert made[0].prompt[:8] == made[1].prompt[:8] and made[0].prompt[8:] != made[1].prompt[8:10]
    assert made[2].prompt[:512] == made[3].prompt[:512] and made[2].prompt[512:] != made[3].prompt[512:520]
    texts = workload(tokens, dataset_name="trace", dataset_path=str(path), prompt_form="text", num_prompts=9)
    assert [tokens.count(one.prompt) for one in texts] == [10, 12, 520, 600]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "line 1 must be a JSON object"),
        ("{", "line 1 must be a JSON object"),
        (
            '{"arrival": 0, "prompt_len": 0, "output_len": 1}',
            "line 1: prompt_len must be a number of at least 1",
        ),
        ('{"arrival": 0, "prompt_len": 3}', "line 1: output_len must be a number of at least 1, got None"),
        ('{"timestamp": -1, "input_length": 3}', "line 1: timestamp must be a number of at least 0, got -1"),
        ('{"arrival": true, "prompt_len": 3, "output_len": 1}', "line 1: arrival must be a number"),
        ("", "has no requests"),
    ],
)
def test_bad_traces_are_named(tokens: TokenSource, tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"trace\.jsonl") as raised:
        workload(tokens, dataset_name="trace", dataset_path=str(path))
    assert message in str(raised.value)


def outcomes(count: int) -> list[Outcome]:
    rng = np.random.default_rng(0)
    made = []
    for i in range(count):
        times = np.cumsum(rng.exponential(0.05, 6)) + i * 0.1
        made.append(Outcome(i, float(i * 0.1), [float(time) for time in times], 10, 6))
    return made


def test_figures_are_numpys() -> None:
    made = outcomes(200)
    failed = Outcome(200, 1.0, [], 10, 0, error="it failed")
    result = measure([*made, failed], 25.0, percentiles=(50, 95, 99.9))
    ttfts = [one.times[0] - one.start for one in made]
    itls = [gap for one in made for gap in np.diff(one.times)]
    tpots = [(one.times[-1] - one.times[0]) / 5 for one in made]
    e2els = [one.times[-1] - one.start for one in made]
    for name, values in (("ttft", ttfts), ("itl", itls), ("tpot", tpots), ("e2el", e2els)):
        assert result[f"mean_{name}_ms"] == pytest.approx(np.mean(values) * 1000)
        assert result[f"std_{name}_ms"] == pytest.approx(np.std(values) * 1000)
        assert result[f"median_{name}_ms"] == pytest.approx(np.median(values) * 1000)
        for percent in (50, 95, 99.9):
            expected = np.percentile(values, percent) * 1000
            assert result[f"p{percent:g}_{name}_ms"] == pytest.approx(expected)
    assert (result["completed"], result["failed"]) == (200, 1)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (2000, 1200)
    assert result["request_throughput"] == 200 / 25
    assert result["error_counts"] == {"it failed": 1}
    assert sum(result["timeline"]["output_tokens"]) == pytest.approx(1200)
    assert result["max_output_tokens_per_s"] == max(result["timeline"]["output_tokens"])
    limit = float(np.median(ttfts)) * 1000
    assert measure(made, 1.0, goodput={"ttft": limit})["request_goodput"] == 100
    assert details([failed, *made[:2]], 201)["errors"].count("not finished") == 198


def test_peaks_are_of_what_ran_together() -> None:
    made = [
        Outcome(0, 0.0, [0.5, 1.5], 1, 2),
        Outcome(1, 1.0, [1.2, 1.9], 1, 4),
        Outcome(2, 1.9, [2.5], 1, 1),
    ]
    result = measure(made, 3.0)
    assert result["max_concurrent_requests"] == 2  # the third begins as the second ends
    assert result["timeline"]["output_tokens"] == [1, 5, 1]  # the second's pieces had two tokens each
    assert result["timeline"]["running"] == [1, 3, 1]


def test_nothing_is_no_error() -> None:
    result = measure([], 0.0, percentiles=(99,))
    assert result["mean_ttft_ms"] == result["p99_itl_ms"] == result["output_throughput"] == 0


def test_results_are_saved_compared_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load = "--target engine --num-threads 1 --num-prompts 3 --disable-tqdm --random-input-len 8 --save-result"
    for name, length in (("a", "40"), ("b", "80")):
        to = f"--random-output-len {length} --result-dir {tmp_path} --result-filename {name}.json"
        assert quire(f"serve {load} {to} --html {tmp_path}/{name}.html") == 0
    a, b = (str(tmp_path / f"{name}.json") for name in "ab")
    capsys.readouterr()
    titles = [
        f"{title}: % of values at or below"
        for title in (
            "Time to first token",
            "Time per output token, after the first",
            "Inter-token latency",
            "End-to-end latency",
        )
    ]
    titles += ["Output tokens a second", "Requests under way"]
    page = tmp_path / "both.html"
    assert quire(f"--compare {a} {b} --html {page}") == 0
    said = capsys.readouterr().out
    row = next(line.split() for line in said.splitlines() if line.startswith("total_output_tokens"))
    assert row == ["total_output_tokens", "120", "240", "2.000"]
    for path, num_lines in ((page, 2), (tmp_path / "a.html", 1)):
        text = path.read_text()
        charts = [
            ElementTree.fromstring(text[at : text.index("</svg>", at) + 6])
            for at in range(len(text))
            if text.startswith("<svg", at)
        ]
        assert [chart.findtext("text") for chart in charts] == titles
        assert all(len(chart.findall("path[@fill='none']")) == num_lines for chart in charts)
        assert "http" not in text
        assert "<td>total_output_tokens</td><td>120</td>" in text
    assert quire(f"--compare {a} {b} --html /dev/full") == 1
    assert "--html: cannot write /dev/full: No space left on device" in capsys.readouterr().err
    assert quire(f"serve {load} --random-output-len 4 --result-dir /dev --result-filename full") == 1
    assert "--save-result: cannot write /dev/full: No space left on device" in capsys.readouterr().err
    assert quire(f"--compare {a} {tmp_path}/none.json") == 1
    (tmp_path / "list.json").write_text("[]")
    assert quire(f"--compare {a} {tmp_path}/list.json") == 1
    assert "is no result of quire bench" in capsys.readouterr().err


def test_throughput_and_latency_of_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    engine = "--num-threads 1 --json"
    size = "--num-prompts 6 --random-input-len 10 --random-output-len 4 --num-warmups 1"
    assert quire(f"throughput {engine} {size}") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["num_requests"], result["total_num_tokens"], result["total_output_tokens"]) == (6, 84, 24)
    assert result["tokens_per_second"] == pytest.approx(84 / result["elapsed_time"])
    batch = "--batch-size 2 --output-len 3 --num-iters 4 --num-iters-warmup 1"
    assert quire(f"latency {engine} {batch}") == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["latencies"]) == 4
    assert result["avg_latency"] == pytest.approx(np.mean(result["latencies"]))
    assert result["percentiles"]["90"] == pytest.approx(np.percentile(result["latencies"], 90))


def test_a_start_is_measured_in_processes_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert quire("startup --num-iters 2 --num-threads 1 --json") == 0
    result = json.loads(capsys.readouterr().out)
    for i in range(2):
        imported, ready, first = (result[f"all_{name}_s"][i] for name in ("import", "ready", "first_token"))
        assert 0 < imported < ready < first < 30
    assert quire("startup --model /nowhere") == 1
    assert "no directory '/nowhere'" in capsys.readouterr().err


def test_an_option_that_is_not_known_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        quire("serve --num-promts 3")
    assert "did you mean --num-prompts?" in capsys.readouterr().err
    assert quire("") == 1
    assert "say what to measure" in capsys.readouterr().err
