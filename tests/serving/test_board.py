"""The Grafana board and the alert rules: they name metrics and labels that ``/metrics`` has."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import velo_serving
from tests.serving.exact_gateway import serving
from tests.serving.fakes import CommandedChannel, backend_of
from velo_serving.gateway.metrics import _COUNTERS, _GAUGES, _HISTOGRAMS

DEPLOY = Path(velo_serving.__file__).parents[1] / "deploy"
DOCS = Path(velo_serving.__file__).parents[2] / "docs" / "serving.md"

#: What an expression may say beside the names of metrics and labels.
WORDS = {
    *("sum", "count", "by", "on", "and", "or", "rate", "increase", "absent", "scalar", "vector", "le"),
    *("histogram_quantile",),
}


def series() -> dict[str, set[str]]:
    """Every series of a gateway with one shard, and its labels, as Prometheus reads them."""

    async def scrape() -> str:
        async with serving(backend_of([CommandedChannel("0")])) as http:
            return (await http.get("/metrics")).text

    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(asyncio.run(scrape())):
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        for suffix in suffixes:
            found[family.name + suffix] = set()
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    board = json.loads((DEPLOY / "grafana-board.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield (
                variable["name"],
                variable["definition"].replace("label_values", "count").replace(",", " by"),
            )
    for group in rules()["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def rules() -> Any:
    return yaml.safe_load((DEPLOY / "velo-alerts.yml").read_text())


def declared_labels() -> set[str]:
    """Labels of all metrics, whether they have samples yet or not."""
    return {label for one in (*_COUNTERS, *_HISTOGRAMS, *_GAUGES) for label in one[2]}


def test_every_metric_that_is_named_is_one_that_a_gateway_emits() -> None:
    known = series()
    named: set[str] = set()
    for title, expression in expressions():
        names = set(re.findall(r"\bvelo_\w+", expression))
        assert names, f"{title} names no metric"
        assert names <= set(known), f"{title}: {names - set(known)}"
        named |= names
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in named}
    everything = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known if name.startswith("velo_")}
    everything = {name for name in everything if not name.endswith("_created")}
    assert shown == everything, "the board and the alerts leave a metric out"


def test_every_label_that_is_named_is_one_of_a_metric() -> None:
    labels = declared_labels()
    assert {"collection", "shard", "outcome", "route", "status", "verb"} <= labels
    for title, expression in expressions():
        plain = re.sub(r'"[^"]*"|\$\w+|\[[^]]*\]', "", expression)
        words = set(re.findall(r"\b[a-z_][a-z_]*\b", plain)) - WORDS
        unknown = {word for word in words if not word.startswith("velo_")} - labels
        assert not unknown, f"{title}: {unknown}"


def test_the_board_is_laid_out() -> None:
    board = json.loads((DEPLOY / "grafana-board.json").read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_alerts_have_instructions() -> None:
    names = []
    for group in rules()["groups"]:
        for rule in group["rules"]:
            names.append(rule["alert"])
            assert rule["labels"]["severity"] in ("page", "ticket")
            assert set(rule["annotations"]) == {"summary", "description"}
            for text in rule["annotations"].values():
                for label in re.findall(r"\$labels\.(\w+)", text):
                    assert label in rule["expr"] or label in ("collection", "shard"), (rule["alert"], label)
    assert len(set(names)) == len(names)


def test_every_alert_has_a_case_in_which_it_speaks_and_one_in_which_it_does_not() -> None:
    """What ``promtool test rules`` runs; promtool itself comes in no package of Python's."""
    told = yaml.safe_load((DEPLOY / "velo-alerts-test.yml").read_text())
    assert told["rule_files"] == ["velo-alerts.yml"]
    known, labels = series(), declared_labels()
    spoke, silent = set(), set()
    for case in told["tests"]:
        for one in case["input_series"]:
            name, *given = re.split(r"[{,}]", one["series"])
            assert name in known, f"{case['name']}: there is no {name}"
            words = {label.partition("=")[0].strip() for label in given if label}
            assert words <= labels | {"le"}, f"{case['name']}: {words - labels}"
        for check in case["alert_rule_test"]:
            (spoke if check["exp_alerts"] else silent).add(check["alertname"])
    names = {rule["alert"] for group in rules()["groups"] for rule in group["rules"]}
    assert spoke == silent == names


@pytest.mark.parametrize("name", ["grafana-board.json", "velo-alerts.yml", "velo-alerts-test.yml"])
def test_the_docs_name_the_file(name: str) -> None:
    assert name in DOCS.read_text()
