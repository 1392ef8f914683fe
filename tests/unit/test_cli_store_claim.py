"""A store on a claim: the pod that reads it is removed whatever happens, and what is missing is named."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from enginewright.kube.api import Listing
from enginewright.kube.errors import NotFound
from enginewright.kube.resources import CLAIMS, Resource
from enginewright_cli import cluster
from enginewright_cli.reporting import CommandError
from enginewright_cli.store.claim import ClaimedStore

PRINTED = '{"kind": "engines", "key": "ab", "used": "2026-01-02T03:04:05+00:00"}\n'


class Cluster:
    """A namespace with one claim, whose kubelet ends each pod as it is told."""

    def __init__(self, phase: str, claim: str = "enginewright-store") -> None:
        self.phase = phase
        self.claim = claim
        self.log = PRINTED
        self.pods: dict[str, Any] = {}
        self.created = 0

    async def get(self, resource: Resource, _namespace: str, name: str) -> Any:
        if resource is CLAIMS:
            if name != self.claim:
                raise NotFound("no such claim")
            return {}
        ended = {"terminated": {"exitCode": 1, "message": "StoreUnavailable: no such volume"}}
        status = {"name": "store", "state": ended, "restartCount": 0, "ready": False, "image": ""}
        return self.pods[name] | {"status": {"phase": self.phase, "containerStatuses": [status]}}

    async def list(self, *_: object) -> Listing:
        return Listing(({"metadata": {"name": self.claim}},), "1")

    async def create(self, pod: Any) -> Any:
        self.created += 1
        pod["metadata"]["uid"] = "u"
        self.pods[pod["metadata"]["name"]] = pod
        return pod

    async def delete(self, _resource: Resource, _namespace: str, name: str, **_: Any) -> None:
        del self.pods[name]

    async def read_log(self, _namespace: str, pod: str, container: str, **_: Any) -> str:
        assert self.pods[pod]["spec"]["containers"][0]["name"] == container
        return self.log


def read(here: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    def query(act: Callable[[Any], Any], context: str | None) -> Any:
        return asyncio.run(act(here))

    monkeypatch.setattr(cluster, "query", query)
    store = ClaimedStore("enginewright-store", "shop", None, "image", print)
    return [(entry.kind, entry.key) for entry in store.list_artifacts()]


def test_artefacts_are_what_the_pod_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Cluster("Succeeded")
    assert read(here, monkeypatch) == [("engines", "ab")]
    assert (here.created, here.pods) == (1, {})


@pytest.mark.parametrize(
    ("here", "wording"),
    [
        (Cluster("Failed"), "has ended: StoreUnavailable: no such volume"),
        (Cluster("Succeeded", claim="models"), "not found in namespace shop; existing: models; a store in a bucket"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_and_no_pod_stays(
    here: Cluster, wording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandError, match=wording):
        read(here, monkeypatch)
    assert here.pods == {}


def test_a_pod_that_prints_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Cluster("Succeeded")
    here.log = "Traceback\n"
    with pytest.raises(CommandError, match="has printed 'Traceback"):
        read(here, monkeypatch)
