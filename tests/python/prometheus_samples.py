"""What a Prometheus text says, as prometheus_client reads it."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

COMMON_LABELS = ("model_name", "engine")  # of all that is an engine's


class Samples:
    """The samples of one text, by name and labels (without those that all of an engine's have)."""

    def __init__(self, text: bytes) -> None:
        self.families: list[Metric] = list(text_string_to_metric_families(text.decode()))
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in self.families:
            for sample in family.samples:
                key = sample.name, _without_common(sample.labels)
                assert key not in self.values, f"{key} is there twice"
                self.values[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.values[name, frozenset(labels.items())]

    def names(self) -> set[str]:
        """Of all samples."""
        return {name for name, _ in self.values}

    def buckets(self, name: str) -> list[tuple[float, float]]:
        """Upper bounds and cumulative counts of a histogram without other labels, as written."""
        return [
            (float(dict(labels)["le"]), value)
            for (sample, labels), value in self.values.items()
            if sample == f"{name}_bucket"
        ]


def _without_common(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in labels.items() if name not in COMMON_LABELS)
