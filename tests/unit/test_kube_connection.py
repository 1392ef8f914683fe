"""Where the connection comes from, and what is said when it cannot be had."""

from pathlib import Path

import pytest
import yaml
from enginewright.kube.connection import (
    ConnectionNotConfigured,
    authorization_of,
    load_connection,
)
from enginewright_cli.cluster import current_namespace
from kubernetes.aio.client.rest import RESTClientObject


def kubeconfig(folder: Path, **user: str) -> Path:
    path = folder / "config"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:9"}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


async def test_kubeconfig_wins_over_the_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, token="t0")))
    configuration = await load_connection()
    assert configuration.host == "http://127.0.0.1:9"
    assert await authorization_of(configuration) == "Bearer t0"


@pytest.mark.parametrize("content", [None, "", "{", "a: b", "[]"])
async def test_unusable_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(ConnectionNotConfigured, match="set KUBECONFIG to a valid file"):
        await load_connection()


async def test_pod_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConnectionNotConfigured, match="automountServiceAccountToken"):
        await load_connection()


@pytest.mark.parametrize(("without", "proxy"), [("", "http://proxy:3128"), ("127.0.0.1", None)])
async def test_the_proxy_of_the_environment_is_used_unless_the_address_is_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str, proxy: str | None
) -> None:
    path = kubeconfig(tmp_path, token="t0")
    path.write_text(path.read_text().replace("http://", "https://"))
    for name, value in (("KUBECONFIG", str(path)), ("HTTPS_PROXY", "http://proxy:3128")):
        monkeypatch.setenv(name, value)
    for name in ("https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", without)
    configuration = await load_connection()
    assert configuration.proxy == proxy
    session = RESTClientObject(configuration)._create_pool_manager()
    assert not session.trust_env  # else both are looked for at each request
    await session.close()


@pytest.mark.parametrize("current", ["a", "gone"])
async def test_context_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, current: str
) -> None:
    path = kubeconfig(tmp_path, token="t0")
    document = yaml.safe_load(path.read_text())
    (only,) = document["contexts"]
    document["contexts"] = [
        {"name": name, "context": {**only["context"], "cluster": name, "namespace": f"of-{name}"}}
        for name in ("a", "b")
    ]
    document["contexts"].append({"name": "plain", "context": only["context"]})
    document["clusters"] += [
        {"name": name, "cluster": {"server": f"http://127.0.0.1:{port}"}}
        for name, port in (("a", 1), ("b", 2))
    ]
    document["current-context"] = current
    path.write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'none'}:{path}")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    assert (await load_connection("b")).host == "http://127.0.0.1:2"
    assert current_namespace("b") == "of-b"
    assert current_namespace("plain") == current_namespace("nosuch") == "default"
    assert current_namespace() == ("of-a" if current == "a" else "default")
    with pytest.raises(ConnectionNotConfigured, match="nosuch"):
        await load_connection("nosuch")
    path.write_text("[]")
    assert current_namespace("b") == "default"
