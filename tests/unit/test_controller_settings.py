"""Settings: what the chart writes is read, and what is wrong is said in one sentence."""

import json
from typing import Any

import pytest
from enginewright.controller.settings import BadSettings, OperatorSettings, load_settings
from enginewright.manifests.store_access import StoreBucket
from enginewright.plan.types import FleetConfig

STORE = {"claim": "store", "size": "20Gi", "accessMode": "ReadWriteMany"}
DOCUMENT = {
    "images": {"cpu": "example.com/cpu:1"},
    "imagePullPolicy": "Always",
    "imagePullSecrets": ["pull"],
    "logLevel": "debug",
    "store": STORE,
}


def load(document: Any, namespace: str = "system") -> OperatorSettings:
    text = document if isinstance(document, str) else json.dumps(document)
    return load_settings({"ENGINEWRIGHT_CONFIG": text, "POD_NAMESPACE": namespace})


def test_what_the_chart_writes() -> None:
    settings = load(DOCUMENT)
    assert (settings.log_level, settings.http_port) == ("debug", 8080)
    config = settings.config
    assert config.namespace == "system"
    assert config.images == {"cpu": "example.com/cpu:1"}
    assert (config.image_pull_policy, config.image_pull_secrets) == ("Always", ("pull",))
    assert config.store.storage_class is None
    assert (config.store.claim, config.store.access_mode) == ("store", "ReadWriteMany")


def test_a_bucket_for_the_store_is_read() -> None:
    assert load(DOCUMENT).config.store.bucket is None
    written = {"uri": "gs://models/team", "secretRef": "keys", "serviceAccountName": "user"}
    document = {**DOCUMENT, "store": {**STORE, "bucket": written}}
    bucket = load(document).config.store.bucket
    assert bucket == StoreBucket(uri="gs://models/team", secret="keys", account="user")
    written["uri"] = "ftp://models"
    with pytest.raises(BadSettings, match=r"store\.bucket\.uri"):
        load({**DOCUMENT, "store": {**STORE, "bucket": written}})


def test_where_jobs_run_is_read() -> None:
    jobs = {"nodeSelector": {"pool": "builds"}, "tolerations": [{"key": "builds"}]}
    template = load({**DOCUMENT, "jobs": jobs}).config.jobs
    assert template.node_selector == {"pool": "builds"}
    assert template.tolerations[0].key == "builds"


def test_how_models_move_is_read() -> None:
    assert load(DOCUMENT).config.fleet == FleetConfig(limit=2, max_failures=3, paused=False)
    fleet = {"limit": 7, "maxFailures": 1, "paused": True}
    assert load({**DOCUMENT, "fleet": fleet}).config.fleet == FleetConfig(7, 1, paused=True)


def test_little_is_needed() -> None:
    settings = load({key: DOCUMENT[key] for key in ("images", "store")})
    assert settings.config.image_pull_policy == "IfNotPresent"
    assert settings.log_level == "info"


def test_the_own_namespace_is_watched_with_those_that_are_named() -> None:
    assert load(DOCUMENT).namespaces is None
    assert load({**DOCUMENT, "watchNamespaces": []}).namespaces is None
    named = load({**DOCUMENT, "watchNamespaces": ["shop"]})
    assert named.namespaces == frozenset({"shop", "system"})


@pytest.mark.parametrize(
    ("document", "reported"),
    [
        ("", "ENGINEWRIGHT_CONFIG is not set"),
        ("{", "ENGINEWRIGHT_CONFIG cannot be used"),
        ("[]", "ENGINEWRIGHT_CONFIG cannot be used"),
        ({**DOCUMENT, "images": {}}, "images"),
        ({**DOCUMENT, "fleet": {"limit": 0}}, "fleet.limit"),
        ({**DOCUMENT, "images": {"cpu": ""}}, "images.cpu"),
        ({**DOCUMENT, "store": {}}, "store.claim"),
        ({**DOCUMENT, "imagePullPolicy": "Sometimes"}, "imagePullPolicy"),
        ({**DOCUMENT, "logLevel": "loud"}, "use one of debug, info, warning, error"),
        ({**DOCUMENT, "httpPort": 0}, "httpPort"),
        ({**DOCUMENT, "jobs": {"nodeSelektor": {}}}, "jobs.nodeSelektor"),
        ({**DOCUMENT, "imagePullPolcy": "Always"}, "imagePullPolcy"),
    ],
)
def test_what_is_wrong_is_named(document: Any, reported: str) -> None:
    with pytest.raises(BadSettings) as caught:
        load(document)
    assert reported in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_namespace_is_needed() -> None:
    with pytest.raises(BadSettings, match="POD_NAMESPACE is not set"):
        load(DOCUMENT, namespace="")
