"""Settings: what the chart writes is read, and what is wrong is said in one sentence."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from enginewright.api.pods import DEFAULT_JOB_TEMPLATE
from enginewright.controller.settings import BadSettings, OperatorSettings, load_settings
from enginewright.manifests.store_access import StoreBucket
from enginewright.plan.types import CollectionConfig, FleetConfig, JobLimits
from enginewright_contract.store_address import BUCKET_ADDRESS

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


def test_chart_settings_are_read() -> None:
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


def test_each_namespace_has_its_own_part_of_the_bucket() -> None:
    store = load(
        {**DOCUMENT, "store": {**STORE, "bucket": {"uri": "s3://models/team"}}}
    ).config.store
    assert store.access("team-a").place == "s3://models/team/team-a"
    assert re.search(BUCKET_ADDRESS, store.access("team-a").place)


def test_the_address_of_the_cache_of_a_node_is_read() -> None:
    assert load(DOCUMENT).config.store.node_cache is None
    given = {**DOCUMENT, "store": {**STORE, "nodeCache": "cache.home.svc:8080"}}
    assert load(given).config.store.node_cache == "cache.home.svc:8080"
    with pytest.raises(BadSettings, match=r"store\.nodeCache|store\.node_cache"):
        load({**DOCUMENT, "store": {**STORE, "nodeCache": "http://cache"}})


def test_where_jobs_run_is_read() -> None:
    jobs = {"nodeSelector": {"pool": "builds"}, "tolerations": [{"key": "builds"}]}
    template = load({**DOCUMENT, "jobs": jobs}).config.jobs
    assert template.node_selector == {"pool": "builds"}
    assert template.tolerations[0].key == "builds"


def test_how_many_jobs_run_is_read() -> None:
    assert load(DOCUMENT).config.job_limits == JobLimits()
    jobs = {"limit": 8, "namespaceLimit": 2, "nodeSelector": {"pool": "builds"}}
    config = load({**DOCUMENT, "jobs": jobs}).config
    assert config.job_limits == JobLimits(8, 2)
    del jobs["limit"], jobs["namespaceLimit"]
    assert config.jobs == load({**DOCUMENT, "jobs": jobs}).config.jobs, "no Job is replaced"


def test_jobs_stay_out_of_meshes_unless_their_proxies_may_be_added() -> None:
    template = load(DOCUMENT).config.jobs
    assert template.labels["sidecar.istio.io/inject"] == "false"
    assert template.annotations["linkerd.io/inject"] == "disabled"
    own = {"labels": {"sidecar.istio.io/inject": "true", "team": "a"}}
    template = load({**DOCUMENT, "jobs": own}).config.jobs
    assert template.labels["sidecar.istio.io/inject"] == "true"
    assert template.labels["kuma.io/sidecar-injection"] == "disabled"
    template = load({**DOCUMENT, "jobs": {"meshInjection": True}}).config.jobs
    assert template == DEFAULT_JOB_TEMPLATE


def test_how_models_move_is_read() -> None:
    assert load(DOCUMENT).config.fleet == FleetConfig(limit=2, max_failures=3, paused=False)
    fleet = {"limit": 7, "maxFailures": 1, "paused": True}
    assert load({**DOCUMENT, "fleet": fleet}).config.fleet == FleetConfig(7, 1, paused=True)


def test_collection_settings_are_read() -> None:
    assert load(DOCUMENT).config.store.gc == CollectionConfig()
    written: dict[str, Any] = {
        "enabled": True,
        "interval": "1h30m",
        "unusedFor": "1d12h",
        "maxSize": "50Gi",
        "dryRun": True,
    }
    document = {**DOCUMENT, "store": {**STORE, "gc": written}}
    assert load(document).config.store.gc == CollectionConfig(
        interval=timedelta(minutes=90),
        unused_for=timedelta(hours=36),
        max_size=50 * 1024**3,
        dry_run=True,
    )
    document["store"] = {**STORE, "gc": {"enabled": False, "unusedFor": "0", "maxSize": ""}}
    assert load(document).config.store.gc == CollectionConfig(enabled=False, unused_for=None)


def test_nothing_is_removed_from_a_bucket_unless_that_is_requested() -> None:
    bucket = {"uri": "s3://models/team"}
    store = {**STORE, "bucket": bucket}
    assert load({**DOCUMENT, "store": store}).config.store.gc.dry_run
    assert not load(
        {**DOCUMENT, "store": {**store, "gc": {"dryRun": False}}}
    ).config.store.gc.dry_run


@pytest.mark.parametrize(
    ("gc", "reported"),
    [
        ({"interval": "0"}, r"store.gc.interval: .*at least 1s, such as 24h"),
        ({"interval": "daily"}, r"store.gc.interval: .*write a duration: 30d"),
        ({"unusedFor": ""}, r"store.gc.unusedFor: .*write a duration: 30d, 24h, 90m or 0"),
        ({"unusedFor": "1h2d"}, "store.gc.unusedFor"),
        ({"maxSize": "0"}, r"store.gc.maxSize: .*write a size such as 50Gi"),
        ({"maxSize": "50GiB"}, "store.gc.maxSize"),
        ({"keep": True}, "store.gc.keep"),
    ],
)
def test_a_wrong_setting_of_it_is_named(gc: dict[str, Any], reported: str) -> None:
    with pytest.raises(BadSettings, match=reported):
        load({**DOCUMENT, "store": {**STORE, "gc": gc}})


def test_little_is_needed() -> None:
    settings = load({key: DOCUMENT[key] for key in ("images", "store")})
    assert settings.config.image_pull_policy == "IfNotPresent"
    assert settings.log_level == "info"


def test_own_namespace_is_watched_with_the_named_ones() -> None:
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
        ({**DOCUMENT, "refusedNetworks": ["10.1.0.0/8"]}, "write a network such as 10.0.0.0/8"),
        ({**DOCUMENT, "images": {"cpu": ""}}, "images.cpu"),
        ({**DOCUMENT, "store": {}}, "store.claim"),
        ({**DOCUMENT, "imagePullPolicy": "Sometimes"}, "imagePullPolicy"),
        ({**DOCUMENT, "logLevel": "loud"}, "use one of debug, info, warning, error"),
        ({**DOCUMENT, "httpPort": 0}, "httpPort"),
        ({**DOCUMENT, "jobs": {"nodeSelektor": {}}}, "jobs.nodeSelektor"),
        ({**DOCUMENT, "jobs": {"limit": -1}}, "jobs.limit"),
        ({**DOCUMENT, "imagePullPolcy": "Always"}, "imagePullPolcy"),
    ],
)
def test_invalid_setting_is_named(document: Any, reported: str) -> None:
    with pytest.raises(BadSettings) as caught:
        load(document)
    assert reported in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_namespace_is_needed() -> None:
    with pytest.raises(BadSettings, match="POD_NAMESPACE is not set"):
        load(DOCUMENT, namespace="")
