"""Reading the Prometheus text of a server's metrics port."""

from __future__ import annotations

import re
from collections.abc import Mapping

from triton_server import TritonServer

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)\{(.*)\} (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Metrics:
    """What one model's samples were at one time: of several engines, their sums."""

    def __init__(self, text: str, model: str) -> None:
        self.samples: dict[tuple[str, str], float] = {}
        for line in text.splitlines():
            if line.startswith("#") or not (match := _SAMPLE.match(line)):
                continue
            labels = dict(_LABEL.findall(match[2]))
            if labels.pop("model", None) == model:
                labels.pop("version", None)
                labels.pop("model_name", None)
                labels.pop("engine", None)
                key = match[1], _written(labels)
                self.samples[key] = self.samples.get(key, 0.0) + float(match[3])

    def __call__(self, name: str, **labels: str) -> float:
        """A sample's value; 0 when there is none. Names are without `quire:`."""
        return self.samples.get((f"quire:{name}", _written(labels)), 0.0)

    def names(self) -> set[str]:
        return {name for name, _ in self.samples}


def _written(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def read_metrics(server: TritonServer, model: str) -> Metrics:
    return Metrics(server.metrics(), model)


def is_idle(server: TritonServer, model: str) -> bool:
    """Nothing runs or waits, and no KV block is held."""
    metrics = read_metrics(server, model)
    assert ("quire:num_requests_running", "") in metrics.samples
    return (
        metrics("num_requests_running") == 0
        and metrics("num_requests_waiting") == 0
        and metrics("kv_cache_usage_perc") == 0
    )
