"""The chart's monitoring objects, and the Prometheus configuration that is made of them."""

import copy
import json
import subprocess
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest
import yaml
from enginewright.manifests.labels import COMPONENT

from hack.monitoring import config
from hack.monitoring.convert import ConvertError, rule_file, scrape_configs
from hack.monitoring.discovery import targets
from hack.monitoring.stack import stack
from tests.e2e.harness import eventually, http_json
from tests.integration.test_chart_render import IMAGES, RESTRICTED, of_kind, render
from tests.support.monitoring import REPOSITORY, RULES, process, promtool
from tests.support.ports import free_port
from tests.support.programs import run_program

pytestmark = pytest.mark.timeout(1500)  # helm is built when it is first used

Object = dict[str, Any]
KINDS = ("PodMonitor", "PrometheusRule", "ConfigMap")


@pytest.fixture(scope="module")
def objects() -> list[Object]:
    return config.chart_objects()


def test_nothing_is_made_unasked() -> None:
    rendered = render(IMAGES)
    assert not [entry for kind in KINDS for entry in of_kind(rendered, kind)]


@pytest.mark.parametrize(
    ("switch", "kind", "count"),
    [("podMonitor", "PodMonitor", 2), ("prometheusRule", "PrometheusRule", 1), ("dashboards", "ConfigMap", 2), ("grafanaAlerts", "ConfigMap", 1)],
)  # fmt: skip
def test_every_kind_has_its_switch_and_labels(switch: str, kind: str, count: int) -> None:
    values = {**IMAGES, "monitoring": {switch: {"enabled": True, "labels": {"release": "mine"}}}}
    rendered = render(values)
    assert {item: len(of_kind(rendered, item)) for item in KINDS} == {
        item: count if item == kind else 0 for item in KINDS
    }
    for entry in of_kind(rendered, kind):
        assert entry["metadata"]["labels"]["release"] == "mine"
        assert entry["metadata"]["namespace"] == "home"


def test_dashboards_have_grafanas_label_and_arrive_whole(objects: list[Object]) -> None:
    shipped = REPOSITORY / "charts/enginewright/files/monitoring/dashboards"
    arrived: dict[str, str] = {}
    for entry in of_kind(objects, "ConfigMap"):
        assert entry["metadata"]["labels"]["grafana_dashboard"] == "1"
        arrived |= entry["data"]
    assert {name: json.loads(text) for name, text in arrived.items()} == {
        f"enginewright-{path.name}": json.loads(path.read_text()) for path in shipped.glob("*.json")
    }


def test_grafanas_alerts_ask_the_data_source_that_is_given() -> None:
    rendered = render(
        {**IMAGES, "monitoring": {"grafanaAlerts": {"enabled": True, "datasource": "mine"}}}
    )
    (entry,) = of_kind(rendered, "ConfigMap")
    assert entry["metadata"]["labels"]["grafana_alert"] == "1"
    shipped = yaml.safe_load((RULES.parent / "grafana-alerts.yaml").read_text())
    for group in shipped["groups"]:
        for rule in group["rules"]:
            rule["data"][0]["datasourceUid"] = "mine"
    assert yaml.safe_load(entry["data"]["enginewright-alerts.yaml"]) == shipped


def test_the_pod_monitor_selects_serving_pods(objects: list[Object]) -> None:
    sidecar, _ = of_kind(objects, "PodMonitor")
    assert sidecar["spec"]["namespaceSelector"] == {"any": True}
    (expression,) = sidecar["spec"]["selector"]["matchExpressions"]
    assert expression == {"key": COMPONENT, "operator": "In", "values": ["serve", "canary"]}
    (endpoint,) = sidecar["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == ("sidecar", "/metrics")


def test_the_operators_pod_monitor_selects_its_pod() -> None:
    rendered = render({**IMAGES, "monitoring": {"podMonitor": {"enabled": True}}})
    (deployment,) = of_kind(rendered, "Deployment")
    _, monitor = of_kind(rendered, "PodMonitor")
    template = deployment["spec"]["template"]
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    )
    assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["home"]}
    (container,) = template["spec"]["containers"]
    ports = [port["name"] for port in container["ports"]]
    assert [item["port"] for item in monitor["spec"]["podMetricsEndpoints"]] == ports


def test_the_plain_file_and_the_prometheus_rule_are_the_same(objects: list[Object]) -> None:
    assert rule_file(objects) == yaml.safe_load(RULES.read_text())


def test_alerts_name_jobs_that_the_pod_monitors_make(objects: list[Object]) -> None:
    jobs = {
        relabeling["replacement"]
        for entry in of_kind(objects, "PodMonitor")
        for endpoint in entry["spec"]["podMetricsEndpoints"]
        for relabeling in endpoint["relabelings"]
        if relabeling.get("targetLabel") == "job"
    }
    assert jobs == {"enginewright-sidecar", "enginewright-operator"}
    assert all(f'{{job="{job}"}}' in RULES.read_text() for job in jobs)


def test_the_converter_matches_the_prometheus_operator() -> None:
    theirs = yaml.safe_load((REPOSITORY / "tests/support/prometheus_operator.yaml").read_text())
    ours = {
        scrape_config["job_name"]: scrape_config
        for scrape_config in scrape_configs(theirs["objects"])
    }
    assert ours == {their["job_name"]: their for their in theirs["scrape_configs"]}


def test_the_discovery_matches_prometheus() -> None:
    discovery = yaml.safe_load((REPOSITORY / "tests/support/prometheus_discovery.yaml").read_text())
    discovered = [
        {"__address__": target["targets"][0], **target["labels"]}
        for target in targets([discovery["pod"]])
    ]
    assert discovered == discovery["targets"]


def test_the_discovery_leaves_out_pods_without_an_address_and_knows_ipv6() -> None:
    discovery = yaml.safe_load((REPOSITORY / "tests/support/prometheus_discovery.yaml").read_text())
    pod = discovery["pod"]
    assert targets([{**pod, "status": {"phase": "Pending"}}]) == []
    pod["status"]["podIP"] = "2001:db8::7"
    assert targets([pod])[0]["targets"] == ["[2001:db8::7]:8080"]


def test_the_discovery_says_when_it_cannot_list_pods(tmp_path: Path) -> None:
    port = free_port()
    place = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    command = [sys.executable, str(REPOSITORY / "hack/monitoring/discovery.py"), f"--port={port}"]
    with process(command, tmp_path / "log", place):

        def is_refused() -> bool:
            try:
                http_json(f"http://127.0.0.1:{port}/")
            except urllib.error.HTTPError as error:
                return error.code == 503
            return False

        eventually(is_refused, 20, "the refusal", interval=0.05)
    assert "pods cannot be listed" in (tmp_path / "log").read_text()
    outside = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert outside.returncode == 1
    assert "run it in a pod" in outside.stderr


MONITOR: Object = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "PodMonitor",
    "metadata": {"name": "a", "namespace": "home"},
    "spec": {
        "selector": {"matchLabels": {"app": "a"}},
        "podMetricsEndpoints": [{"port": "http", "relabelings": [{"targetLabel": "job"}]}],
    },
}
NOT_IN: Object = {"key": "app", "operator": "NotIn", "values": ["a"]}
RULE: Object = {
    **MONITOR,
    "kind": "PrometheusRule",
    "spec": {"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "up == 0"}]}]},
}


@pytest.mark.parametrize(
    ("thing", "path", "value", "message"),
    [
        (MONITOR, "spec.sampleLimit", 1, "PodMonitor a: spec.sampleLimit is not supported"),
        (MONITOR, "spec.selector.matchExpressions", [NOT_IN], "spec.selector.matchExpressions[0].operator NotIn is not supported"),
        (MONITOR, "spec.namespaceSelector", {"all": True}, "spec.namespaceSelector.all is not supported"),
        (MONITOR, "spec.podMetricsEndpoints.0.bearerTokenSecret", {}, "spec.podMetricsEndpoints[0].bearerTokenSecret"),
        (MONITOR, "spec.podMetricsEndpoints.0.relabelings.0.if", "x", "[0].relabelings[0].if is not supported"),
        (MONITOR, "spec.podMetricsEndpoints.0", {"path": "/"}, "spec.podMetricsEndpoints[0].port is missing: add it"),
        (MONITOR, "spec.selector", [], "spec.selector is not an object"),
        (MONITOR, "spec", None, "PodMonitor a: spec is missing"),
        (MONITOR, "metadata.namespace", "", "metadata.namespace is missing"),
        (MONITOR, "apiVersion", "v1", "apiVersion v1 is not monitoring.coreos.com/v1"),
        (RULE, "spec.groups.0.partial_response_strategy", "warn", "PrometheusRule a: spec.groups[0].partial_response_strategy"),
        (RULE, "spec.groups.0.rules.0", {"record": "x", "expr": "1"}, "spec.groups[0].rules[0].record is not supported"),
        (RULE, "spec", {}, "PrometheusRule a: spec.groups is missing"),
    ],
)  # fmt: skip
def test_the_converter_refuses_unknown_fields_by_name(
    thing: Object, path: str, value: object, message: str
) -> None:
    changed = copy.deepcopy(thing)
    *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = changed
    for part in way:
        place = place[part]
    place[last] = value
    with pytest.raises(ConvertError) as caught:
        scrape_configs([changed]) if thing is MONITOR else rule_file([changed])
    assert message in str(caught.value)


def convert(what: str, text: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [sys.executable, REPOSITORY / "hack/monitoring/convert.py", what],
        input=text,
        timeout=30,
        code=None,
    )


def test_the_converters_command(objects: list[Object]) -> None:
    done = convert("scrape-configs", yaml.safe_dump_all(objects))
    assert yaml.safe_load(done.stdout) == {"scrape_configs": scrape_configs(objects)}
    assert yaml.safe_load(convert("rules", yaml.safe_dump_all(objects)).stdout) == rule_file(
        objects
    )
    for text, message in (
        (yaml.safe_dump({**MONITOR, "apiVersion": "v2"}), "convert: PodMonitor a: apiVersion v2"),
        ("a: [", "convert: stdin is not valid YAML"),
    ):
        refused = convert("scrape-configs", text)
        assert refused.returncode == 1
        assert message in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.fixture(scope="module")
def stacked(objects: list[Object]) -> list[Object]:
    return stack("watching", "localhost/monitoring:1", objects)


def test_promtool_accepts_the_stacks_configuration(
    stacked: list[Object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    (config_map,) = of_kind(stacked, "ConfigMap")
    folder = tmp_path_factory.mktemp("config")
    for name, text in config_map["data"].items():
        (folder / name).write_text(text.replace("/config/", f"{folder}/"))
    promtool("check", "config", str(folder / "prometheus.yml"))
    promtool("check", "rules", str(folder / "rules.yml"))


def test_the_stacks_pods_are_restricted(stacked: list[Object]) -> None:
    (namespace,) = of_kind(stacked, "Namespace")
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}
    for deployment in of_kind(stacked, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == RESTRICTED
        finds_pods = deployment["metadata"]["name"] == "prometheus"
        assert pod["automountServiceAccountToken"] is finds_pods


def test_the_stack_may_find_pods_and_nothing_else(stacked: list[Object]) -> None:
    (role,) = of_kind(stacked, "ClusterRole")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]


def test_a_changed_configuration_starts_new_pods(objects: list[Object]) -> None:
    changed = copy.deepcopy(objects)
    of_kind(changed, "PodMonitor")[0]["spec"]["podMetricsEndpoints"][0]["path"] = "/other"
    first, second = (
        [
            entry["spec"]["template"]["metadata"]["annotations"]
            for entry in of_kind(made, "Deployment")
        ]
        for made in (stack("a", "i", objects), stack("a", "i", changed))
    )
    assert first != second
