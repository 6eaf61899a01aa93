"""The alerts and the dashboard in deploy/monitoring: their metrics are those of the server, and the alerts fire."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from packages import ROOT
from stablernn_server import Settings
from stablernn_server.auth import required_access
from stablernn_server.errors import STATUS_AND_CODE
from stablernn_server.observability.telemetry import Telemetry

MONITORING = ROOT / "deploy" / "monitoring"
RULES: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus-rule.yaml").read_text(encoding="utf-8"))
MONITOR: dict[str, Any] = yaml.safe_load((MONITORING / "service-monitor.yaml").read_text(encoding="utf-8"))
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))

RULES_BY_NAME = {
    rule.get("alert") or rule["record"]: rule["expr"] for group in RULES["spec"]["groups"] for rule in group["rules"]
}
RECORDED = {name for name in RULES_BY_NAME if ":" in name}
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"] if panel["type"] != "row"}
QUERIES = {
    f"{title} {target['refId']}": target["expr"] for title, panel in PANELS.items() for target in panel["targets"]
}
EXPRESSIONS = RULES_BY_NAME | QUERIES

TARGET_LABELS = {"job", "namespace", "pod"}
"""Labels that Prometheus adds to every sample of a pod."""
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def exported_metrics() -> dict[str, set[str]]:
    """Labels of every sample that ``/metrics`` can have, by name."""
    registry = Telemetry(Settings()).metrics._registry
    collectors = set(registry._collector_to_names)
    metrics = {
        family.name + suffix: set(getattr(collector, "_labelnames", ())) | ({"le"} if suffix == "_bucket" else set())
        for collector in collectors
        for family in (collector.collect() if "Process" in type(collector).__name__ else collector.describe())
        for suffix in SUFFIXES[family.type]
    }
    # Prometheus itself writes these.
    return metrics | {"up": set()} | {name: set() for name in RECORDED}


METRICS = exported_metrics()


def used_metrics(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each metric of an expression with the labels that its selector names."""
    # Texts and label lists hold words that are no metrics.
    bare = re.sub(r"\b(by|on|without)\s*\([^)]*\)", "", expression)
    for name, selector in re.findall(r"(?<![\w:])((?:namespace:)?(?:stablernn|process)_[\w:]+|up\b)(\{[^}]*\})?", bare):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))


def test_every_metric_label_and_error_code_is_exported() -> None:
    known = {code for _, code in STATUS_AND_CODE.values()} | {"internal"}
    for name, expression in EXPRESSIONS.items():
        used = list(used_metrics(expression))
        assert used, name
        for metric, labels in used:
            assert labels <= METRICS[metric] | TARGET_LABELS, (name, metric)
        lists = re.findall(r"\bby\s*\(([^)]*)\)", expression)
        grouped = {label.strip() for labels in lists for label in labels.split(",")}
        assert grouped <= TARGET_LABELS.union(*(METRICS[metric] for metric, _ in used)), name
        for codes in re.findall(r'stablernn_failures_total\{[^}]*code[=!]~"([^"]*)"', expression):
            assert set(codes.split("|")) <= known, name


def test_the_dashboard_shows_every_metric() -> None:
    shown = {metric for query in QUERIES.values() for metric, _ in used_metrics(query)}
    families = {re.sub(r"_(bucket|sum|count)$", "", metric) for metric in METRICS if metric.startswith("stablernn_")}
    assert {re.sub(r"_(bucket|sum|count)$", "", metric) for metric in shown} >= families


def test_the_monitor_reads_a_path_that_needs_a_token() -> None:
    [endpoint] = MONITOR["spec"]["endpoints"]
    assert required_access(endpoint["path"]) == "infer"
    service = yaml.safe_load((ROOT / "deploy/kubernetes/server/service.yaml").read_text(encoding="utf-8"))
    assert MONITOR["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["metadata"]["labels"][MONITOR["spec"]["jobLabel"]] == "stablernn"
    assert [endpoint["port"]] == [port["name"] for port in service["spec"]["ports"]]


def assert_promtool_passes(folder: Path, *arguments: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed; it is part of Prometheus")
    done = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_rules_and_queries(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(RULES["spec"]), encoding="utf-8")
    # promtool checks expressions in rules only, so that each query of the dashboard becomes one.
    records = [
        {"record": f"query:{number}", "expr": re.sub(r"\$__rate_interval", "5m", query)}
        for number, query in enumerate(QUERIES.values())
    ]
    queries = {"groups": [{"name": "queries", "rules": records}]}
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump(queries), encoding="utf-8")
    assert_promtool_passes(tmp_path, "check", "rules", "alerts.yaml", "queries.yaml")


def test_alerts_fire(tmp_path: Path) -> None:
    """Each alert fires, and none does on a healthy server."""
    cases = Path(__file__).with_name("alerts_test.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"alertname: (\w+)", cases)) == set(RULES_BY_NAME) - RECORDED
    # promtool compares annotations too, where they would only repeat the rules.
    groups = [
        {
            "name": group["name"],
            "rules": [{k: v for k, v in rule.items() if k != "annotations"} for rule in group["rules"]],
        }
        for group in RULES["spec"]["groups"]
    ]
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    (tmp_path / "alerts_test.yaml").write_text(cases, encoding="utf-8")
    assert_promtool_passes(tmp_path, "test", "rules", "alerts_test.yaml")
