"""quire simulate, as a person runs it. What the simulator computes is tested in tests/cpp/simulator."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from quire.calibrate import calibrate
from quire.simulate import simulate
from quire.simulation_plots import check_plot_format
from quire.simulation_report import format_seconds


def quire(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quire.cli", "simulate", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_report_is_printed() -> None:
    done = quire("--requests", "200", "--rate", "20", "--engines", "2", "--max-num-seqs", "8")
    assert done.returncode == 0, done.stderr
    lines = {line[:13].strip(): line[13:] for line in done.stdout.splitlines()}
    assert lines["requests"].startswith("200 of 200 finished")
    assert lines["engines"].startswith("2, busy")
    assert "100 to 100 requests" in lines["each"]
    assert len(lines["TTFT"].split()) == 10  # five times, each with its unit
    assert "without" not in done.stderr


def test_the_same_seed_gives_the_same_json() -> None:
    args = ("--requests", "100", "--rate", "50", "--engines", "3", "--router", "prefix_aware", "--json", "-")
    first = quire(*args, "--prefix-share", "0.5")
    assert first.returncode == 0, first.stderr
    assert quire(*args, "--prefix-share", "0.5").stdout == first.stdout
    assert quire(*args, "--prefix-share", "0.5", "--seed", "1").stdout != first.stdout


def test_a_workload_is_read_from_a_file(tmp_path: Path) -> None:
    workload = tmp_path / "workload.jsonl"
    workload.write_text('{"arrival": 0, "prompt_len": 10, "output_len": 3}\n' * 4)
    out = tmp_path / "report.json"
    done = quire("--workload", str(workload), "--json", str(out), "--no-enable-prefix-caching")
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["num_output_tokens"] == 12
    assert report["prefix_cache_hit_rate"] == 0


def test_a_calibration_decides_what_steps_cost(tmp_path: Path) -> None:
    table = tmp_path / "table.jsonl"
    steps = [(1, 1, 1), (2, 2, 8), (64, 1, 64), (65, 2, 90), (8, 8, 800)]
    table.write_text(
        "".join(
            json.dumps(
                {"num_tokens": t, "num_reqs": r, "context_tokens": c, "seconds": 0.01 + 0.001 * t + 0.002 * r}
            )
            + "\n"
            for t, r, c in steps
        )
    )
    workload = {"num_requests": 1, "prompt_min": 30, "prompt_max": 30, "output_min": 2, "output_max": 2}
    report = simulate({"calibration": str(table), "workload": workload})
    assert report["ttft"]["mean"] == pytest.approx(0.01 + 0.030 + 0.002)
    assert report["itl"]["mean"] == pytest.approx(0.01 + 0.001 + 0.002)


def test_html_plots_are_complete_and_need_nothing(tmp_path: Path) -> None:
    out = tmp_path / "plot.html"
    done = quire("--requests", "50", "--rate", "10", "--plot", str(out))
    assert done.returncode == 0, done.stderr
    page = out.read_text()
    charts = [
        ElementTree.fromstring(page[page.index("<svg", i) : page.index("</svg>", i) + 6])
        for i in range(len(page))
        if page.startswith("<svg", i)
    ]
    assert len(charts) == 3
    assert all(chart.findall("path[@fill='none']") for chart in charts)
    assert "http" not in page


def test_png_plots_are_pictures(tmp_path: Path) -> None:
    out = tmp_path / "plot.png"
    assert quire("--requests", "20", "--plot", str(out)).returncode == 0
    data = out.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert width > 400 and height > 400


def test_png_without_matplotlib_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="PNG needs matplotlib"):
        check_plot_format(tmp_path / "plot.png")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--workload", "x.jsonl", "--requests", "5"), "--workload and --requests exclude each other"),
        (("--workload", "/nowhere.jsonl"), "no such file"),
        (("--router", "random"), "got 'random'"),
        (("--max-num-seqs", "0"), "max_num_seqs must be an integer from 1 to 4096"),
        (("--plot", "out.gif"), "must end in .html or .png"),
    ],
)
def test_errors_are_one_line(args: tuple[str, ...], message: str) -> None:
    done = quire(*args)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert message in done.stderr


def test_a_table_measured_here_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo_model: Path
) -> None:
    monkeypatch.setattr("quire.calibrate._BATCHES", (1, 4))
    monkeypatch.setattr("quire.calibrate._CONTEXTS", (16,))
    monkeypatch.setattr("quire.calibrate._CHUNKS", (32, 64))
    table = tmp_path / "table.jsonl"
    calibrate(str(demo_model), table)
    header, *steps = [json.loads(line) for line in table.read_text().splitlines()]
    assert header["machine"] and header["date"]
    assert {key: steps[1][key] for key in ("num_tokens", "num_reqs")} == {"num_tokens": 4, "num_reqs": 4}
    report = simulate({"calibration": str(table), "workload": {"num_requests": 20}})
    assert report["num_finished"] == 20
    assert header["machine"] in report["cost_model"]["source"]


def test_times_have_three_digits_and_a_unit() -> None:
    texts = [format_seconds(x) for x in (0, 2.5e-8, 0.00123, 0.0456, 0.789, 1.5, 12.34, 1234.5)]
    assert texts == ["0", "25 ns", "1.23 ms", "45.6 ms", "789 ms", "1.50 s", "12.3 s", "1,234 s"]
