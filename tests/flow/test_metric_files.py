"""The dashboard, the alerts and the documentation name only metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.core.backlog import Backlog, Thresholds
from tenure.core.job import Owner
from tenure.core.leadership import Term
from tenure.core.lifecycle import State
from tenure.health.assessment import judged
from tenure.health.metrics import rendered
from tenure.health.process_health import ProcessHealth
from tenure.metrics import METRICS, MetricsRegistry
from tenure.options import Timing
from tenure.outbox.outbox import OutboxState
from tenure.storage.protocol import QueueSurvey, Survey, WorkerSurvey
from tests.exposition import read
from tests.system.plain_yaml import documents

ROOT = Path(__file__).parents[2]
HERE = ROOT / "examples" / "production" / "prometheus"


def metrics() -> dict[str, tuple[str, set[str]]]:
    """Return the kind and the labels of each metric, as they are exported."""
    figures = MetricsRegistry()
    for metric in METRICS:
        labels = [f"some {label}" for label in metric.labels]
        if metric.buckets:
            figures.observe(metric, [1.0], *labels)
        else:
            figures.count(metric, *labels)
    survey = Survey(
        queues=(QueueSurvey(queue="mail", counts={State.WAITING: 1}),),
        workers=(WorkerSurvey(owner=Owner("w", "host:1", "host", 1), queues=("mail",)),),
        leaders=(Term("*", "w", 1, 1),),
        swept_ago=1,
    )
    health = judged(survey, timing=Timing(), thresholds=Thresholds(), backlog=Backlog(), now=0.0)
    process, outbox = ProcessHealth(owners=("w",), lag=0.0, metrics=figures.totals()), OutboxState(1, 1, 1.0)
    found = read(rendered(survey, health, process, outbox))
    return {
        name: (family.kind, {label for _, labels in family.samples for label, _ in labels} - {"le"})
        for name, family in found.items()
    }


def expressions() -> Iterator[tuple[str, str]]:
    (output,) = documents((HERE / "alerts.yaml").read_text())
    for group in output["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads((HERE / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_expression_uses_existing_metrics_and_labels(where: str, expression: str) -> None:
    there = metrics()
    asked = re.findall(r"\b(tenure_\w+)", expression)
    given: set[str] = {"le", "instance"}
    for name in asked:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        kind, labels = there.get(name) or there[base]
        given |= labels
        assert (kind == "histogram") == (name != base), name
        # A counter is read by its increase only, and a gauge by its value.
        risen = re.search(rf"(rate|increase)\({name}(\{{[^}}]*\}})?\[", expression) is not None
        assert risen == (kind != "gauge"), name
    used = re.findall(r"(?:by|on) ?\(([^)]*)\)", expression) + re.findall(r"[{,](\w+) ?!?=~?\"", expression)

    assert asked
    assert {label.strip() for item in used for label in item.split(",") if label.strip()} <= given
    assert [expression.count(mark) for mark in "([{"] == [expression.count(mark) for mark in ")]}"]


def test_every_alert_has_a_severity_and_a_description() -> None:
    (output,) = documents((HERE / "alerts.yaml").read_text())
    rules: list[Any] = output["groups"][0]["rules"]

    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}, rule
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert re.fullmatch(r"\d+m", rule.get("for", "0m")), rule
        assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= set(
            re.findall(r"\w+", rule["expr"])
        )


def test_the_dashboard_has_unique_panels_that_fit_the_grid() -> None:
    board = json.loads((HERE / "grafana.json").read_text())

    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"


def test_every_metric_is_documented_with_its_kind_and_its_labels() -> None:
    text = (ROOT / "docs" / "howto" / "health.md").read_text()
    rows = re.findall(r"^\| `(tenure_\w+)(?:\{([\w, ]*)\})?` \| (\w+) \| (.+) \|$", text, re.MULTILINE)
    documented = {
        name: (kind, {label.strip() for label in labels.split(",") if label.strip()}) for name, labels, kind, _ in rows
    }

    assert documented == metrics()
