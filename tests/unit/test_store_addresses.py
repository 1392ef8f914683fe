"""Addresses and settings of buckets: what is invalid is named, and its value is never repeated."""

import json
import re
from pathlib import Path

import pytest
from enginewright.controller.settings import BucketSettings
from enginewright_contract.reasons import Reason
from enginewright_contract.store_address import BUCKET_ADDRESS
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.remote.buckets import bucket
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.object_errors import store_error
from enginewright_runtime.store.objects import Objects
from pydantic import ValidationError

from tests.support.store_places import no_waiting

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hunter2"}
AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "aHVudGVyMg=="}
KNOWN = {"s3": KEYS, "gs": {"service-account.json": "{}"}, "az": AZURE}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    no_waiting(monkeypatch)


def chart_pattern() -> str:
    schema = json.loads(Path("charts/enginewright/values.schema.json").read_text())
    pattern: str = schema["properties"]["store"]["properties"]["bucket"]["properties"]["uri"][
        "pattern"
    ]
    return pattern


@pytest.mark.parametrize(
    "uri",
    [
        "s3://b", "s3://b/", "s3://b/a", "s3://b/a/", "gs://my.bucket_1/a.b/..c/.d/e...",
        "az://account.blob.core.windows.net/c/a", "s3://b/a%20b/=+,;ä",
    ],
)  # fmt: skip
def test_addresses_of_stores(uri: str) -> None:
    assert BucketSettings(uri=uri).uri == uri
    assert re.fullmatch(chart_pattern(), uri)
    Objects(uri, Secret(KNOWN[uri[:2]]))


@pytest.mark.parametrize(
    "uri",
    [
        "", "b/a", "S3://b/a", "ftp://b/a", "s3://", "s3:///a", "s3://b//a", "s3://b/a//", "s3://b/./a",
        "s3://b/a/..", "s3://../a", "s3://b/a b", "s3://b/a\n", "s3://id:hunter2@b/a",
        "az://account.blob.core.windows.net/c/a?sv=1&sig=hunter2", "s3://b/a#hunter2", "s3://b/a?",
    ],
)  # fmt: skip
def test_invalid_address_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ValidationError):
        BucketSettings(uri=uri)
    assert not re.fullmatch(chart_pattern().removeprefix("^$|"), uri)
    with pytest.raises(StageFailure, match="the address is not that of a bucket") as caught:
        Objects(uri, Secret({**KEYS, **AZURE}))
    assert caught.value.reason is Reason.STORE_UNAVAILABLE
    assert "write s3://BUCKET/PATH" in caught.value.message
    assert "hunter2" not in caught.value.message


def test_the_chart_has_the_pattern_of_the_settings() -> None:
    assert chart_pattern() == f"^$|{BUCKET_ADDRESS}"


@pytest.mark.parametrize(
    ("uri", "settings", "reported"),
    [
        ("s3://b/a", {"AWS_ENDPOINT_URL": "minio:9000"}, "AWS_ENDPOINT_URL of the Secret does not begin"),
        ("s3://b/a", {"AWS_ENDPOINT_URL_S3": "HTTP://minio"}, "AWS_ENDPOINT_URL_S3 of the Secret does not"),
        ("s3://b/a", {"AWS_ENDPOINT_URL": "http://"}, "has no valid host and port"),
        ("s3://b/a", {"AWS_ENDPOINT_URL": "https://[::1"}, "has no valid host and port"),
        ("s3://b/a", {"AWS_ENDPOINT_URL": "http://minio:99999"}, "has no valid host and port"),
        ("s3://b/a", {"AWS_ENDPOINT_URL": "http://minio:x"}, "has no valid host and port"),
        ("s3://b/a", {"AWS_ENDPOINT_URL": "http://minio:"}, "has no valid host and port"),
        ("s3://b/a", {"AWS_ENDPOINT_URL": "http://minio\n:1"}, "has spaces, line breaks"),
        ("s3://b/a", {"AWS_ENDPOINT_URL": "http://u:hunter2@minio"}, "contains a user or a password"),
        ("s3://b/a", {"AWS_ENDPOINT_URL": "http://minio?x=hunter2"}, "has a query"),
        ("s3://b/a", {"AWS_REGION": "eu central\n"}, "the key AWS_REGION of the Secret is no region"),
        ("s3://b/a", {"AWS_ACCESS_KEY_ID": "id\nx"}, "the key AWS_ACCESS_KEY_ID of the Secret has line"),
        ("s3://b/a", {"AWS_SECRET_ACCESS_KEY": "hunter2\n2"}, "AWS_SECRET_ACCESS_KEY of the Secret has"),
        ("s3://b/a", {"AWS_SESSION_TOKEN": "hunter2\x01"}, "AWS_SESSION_TOKEN of the Secret has line"),
        ("s3://b/a", {"ca.crt": "hello"}, r"ca\.crt of the Secret holds no certificate"),
        ("s3://no such/a", {}, "names a bucket that no store can have"),
        ("s3://../a", {}, "names a bucket that no store can have"),
        ("gs://b/a", {"GOOGLE_BASE_URL": "ftp://x"}, "GOOGLE_BASE_URL of the Secret does not begin"),
        ("az://c/a", {"AZURE_STORAGE_ENDPOINT": "azurite"}, "AZURE_STORAGE_ENDPOINT of the Secret does"),
        ("az://c/a", {"AZURE_STORAGE_ACCOUNT_KEY": "hunter2\n x"}, "AZURE_STORAGE_ACCOUNT_KEY of the Secret"),
        ("az://c/a", {"AZURE_STORAGE_ACCOUNT_NAME": "a b"}, "AZURE_STORAGE_ACCOUNT_NAME of the Secret is no"),
        ("az://account.blob.core.windows.net:x/c/a", {}, "the storage account in the address has no valid"),
    ],
)  # fmt: skip
def test_invalid_settings_are_not_repeated(
    uri: str, settings: dict[str, str], reported: str
) -> None:
    with pytest.raises(StageFailure, match=reported) as caught:
        bucket(uri, Secret({**KNOWN[uri[:2]], **settings}))
    assert "hunter2" not in caught.value.message
    assert caught.value.finding.remedy


def test_a_variable_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "minio:9000")
    with pytest.raises(StageFailure, match="the environment variable AWS_ENDPOINT_URL does not"):
        bucket("s3://b/a", Secret({}))


@pytest.mark.parametrize(
    ("uri", "reported"),
    [
        ("s3://no such/a", "a bucket that no store can have; write s3://BUCKET/PATH, with letters"),
        ("az://no such/a", "a container that no store can have; write az://CONTAINER/PATH, with letters"),
        ("gs:///a", "gs:///a names no bucket; write gs://BUCKET/PATH"),
        ("az:///a", "az:///a names no container; write az://CONTAINER/PATH"),
    ],
)  # fmt: skip
def test_what_holds_objects_is_named_as_its_provider_calls_it(uri: str, reported: str) -> None:
    with pytest.raises(StageFailure) as caught:
        bucket(uri, Secret(KNOWN[uri[:2]]))
    assert reported in caught.value.message


@pytest.mark.parametrize(
    ("uri", "identity"),
    [
        ("az://models.blob.core.windows.net/c/m", "environment"),
        ("az://models.z01.blob.storage.azure.net/c/m", "environment"),
        ("az://models.blob.core.windows.net.evil.example/c/m", "withheld"),
        ("az://core.windows.net/c/m", "withheld"),
    ],
)
def test_only_servers_of_azure_s_own_in_an_address_get_the_pods_identity(
    uri: str, identity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", "/token")
    assert bucket(uri, Secret({}), of_source=True).identity == identity


def test_a_stores_server_gets_the_pods_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Secret is the administrator's."""
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/token")
    named = Secret({"AWS_ENDPOINT_URL": "http://minio"})
    assert bucket("s3://b/a", named).identity == "environment"


@pytest.mark.parametrize(
    "endpoint",
    ["http://minio", "https://minio.shop.svc:9000", "http://[::1]:9000", "http://h/p/q/"],
)
def test_endpoints(endpoint: str) -> None:
    store = bucket("s3://b/a", Secret({**KEYS, "AWS_ENDPOINT_URL": endpoint}))
    assert store.settings["endpoint"] == endpoint.rstrip("/")
    store.open()


def test_the_user_of_an_endpoint_is_not_in_a_message() -> None:
    text = "Generic S3 error: Error performing GET http://u:hunter2@minio:9/b in 1ms - dns error"
    assert store_error(Exception(text), "b", "0 B").message == "the name minio:9 cannot be resolved"
