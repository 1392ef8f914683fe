"""Stores in buckets of real servers, and the way past a store to its objects."""

import os
from dataclasses import dataclass
from pathlib import Path

import obstore
import pytest
from enginewright_contract.manifest import Manifest
from enginewright_runtime.remote import retry
from enginewright_runtime.remote.buckets import bucket
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.store import PREPARED, ArtifactKind, Store
from enginewright_runtime.store.bucket import BucketMedium
from enginewright_runtime.store.inventory import Inventory
from enginewright_runtime.store.medium import Leftover

from tests.support.source_servers import GoServers, SourceServers

KEY = "ab" * 32
MANIFEST = f"prepared/{KEY}/manifest.json"


def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test ask a metadata service of the machine that it runs on, or wait between tries."""
    monkeypatch.setattr(retry, "_FIRST_PAUSE", 0.001)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", "http://127.0.0.1:9")


@dataclass(frozen=True)
class Place:
    """One store in a bucket, and the way past it to its objects."""

    uri: str
    secret: dict[str, str]

    def store(self, kind: ArtifactKind = PREPARED, **changes: str) -> Store:
        return Store(BucketMedium(self.uri, Secret({**self.secret, **changes})), kind)

    def inventory(self) -> Inventory:
        return Inventory(BucketMedium(self.uri, Secret(self.secret)))

    def list_keys(self) -> list[str]:
        """Return the keys of all prepared models."""
        return [artifact.key for artifact in self.inventory().artifacts(PREPARED)]

    def leftovers(self) -> list[Leftover]:
        return list(self.inventory().leftovers())

    def objects(self) -> dict[str, bytes]:
        """Return all objects below the store's address."""
        store = bucket(self.uri, Secret(self.secret))
        opened = store.open()
        return {
            meta["path"].removeprefix(f"{store.path}/"): bytes(
                obstore.get(opened, meta["path"]).bytes()
            )
            for metas in obstore.list(opened, f"{store.path}/")
            for meta in metas
        }

    def put(self, name: str, content: bytes | None) -> None:
        """Replace an object, or delete it."""
        store = bucket(self.uri, Secret(self.secret))
        key = f"{store.path}/{name}"
        if content is None:
            obstore.delete(store.open(), key)
        else:
            obstore.put(store.open(), key, content)

    def manifest(self) -> Manifest:
        return Manifest.model_validate_json(self.objects()[MANIFEST])

    def file(self, name: str) -> str:
        """Return the object that holds a file of the artefact."""
        (digest,) = (
            artifact_file.sha256
            for artifact_file in self.manifest().files
            if artifact_file.path == name
        )
        return f"files/{digest}"


@dataclass(frozen=True)
class AgingPlace(Place):
    """A store whose server can be made to believe that its objects are older."""

    folder: Path

    def grow_old(self, days: int) -> None:
        for path in (self.folder / "s3/store").rglob("*"):
            then = path.stat().st_mtime - days * 86_400
            os.utime(path, (then, then))


def of_gateway(gateway: GoServers, address: str) -> AgingPlace:
    """Return a store in a gateway of the test's own, at this address."""
    servers = SourceServers(gateway.folder, gateway.addresses)
    return AgingPlace("s3://store/a", servers.s3(AWS_ENDPOINT_URL=address), gateway.folder)
