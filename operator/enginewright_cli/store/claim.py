"""Reads a store on a claim of the cluster, by a pod that mounts it read-only."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from typing import Final

from enginewright.kube.api import JsonObject
from enginewright.kube.client import KubeClient
from enginewright.observed.pods import PodView
from enginewright_contract.manifest import Manifest
from pydantic import BaseModel, ValidationError

from enginewright_cli import claim_pods, cluster
from enginewright_cli.formatting import count_noun
from enginewright_cli.reporting import CommandError
from enginewright_cli.upload.claim import Progress

_IN_BUCKET: Final = (
    "; a store in a bucket is read at the address of its namespace: s3://BUCKET/PATH/NAMESPACE"
)
_SECONDS: Final = 300.0
_MOST_LINES: Final = 100_000
_PURPOSE: Final = "store"


class ClaimEntry(BaseModel):
    """One artefact, as the pod prints it."""

    kind: str
    key: str
    used: datetime
    manifest: str | None = None  # of `describe`; "": removed meanwhile


@dataclass(frozen=True)
class ClaimedStore:
    """A store on a claim, and how it is reached."""

    claim: str
    namespace: str | None
    context: str | None
    image: str | None
    progress: Progress

    def list_artifacts(self) -> list[ClaimEntry]:
        """Return the artefacts, of each kind the last used first. Raises CommandError."""
        return order(self._read(()))

    def describe(self, beginning: str) -> Manifest:
        """Return the manifest of an artefact, by the beginning of its key. Raises CommandError."""
        entries = self._read((beginning,))
        if len(entries) != 1 or not entries[0].manifest:
            raise CommandError(
                f"the store has {count_noun(len(entries), 'artefact')} whose keys begin with {beginning!r}:"
                " give the key of one"
            )
        return Manifest.model_validate_json(entries[0].manifest)

    def _read(self, arguments: Iterable[str]) -> list[ClaimEntry]:
        where = self.namespace or cluster.current_namespace(self.context)

        async def act(client: KubeClient) -> list[ClaimEntry]:
            await claim_pods.check_claim(client, where, self.claim, _IN_BUCKET)
            image = self.image or await claim_pods.find_image(client)
            pod = make_pod(where, self.claim, image, arguments)
            async with claim_pods.run_pod(
                client, pod, _SECONDS, self.progress, _has_succeeded
            ) as name:
                return parse(await client.read_log(where, name, _PURPOSE, tail=_MOST_LINES))

        return cluster.query(act, self.context)


def order(entries: list[ClaimEntry]) -> list[ClaimEntry]:
    """Return prepared models before engines, of each the last used first."""
    entries.sort(key=lambda entry: (entry.used, entry.key), reverse=True)
    return sorted(entries, key=lambda entry: entry.kind != "prepared")


def make_pod(namespace: str, claim: str, image: str, arguments: Iterable[str]) -> JsonObject:
    """Return the pod that reads the store."""
    program = (
        resources.files("enginewright_cli.store").joinpath("reader.py").read_text(encoding="utf-8")
    )
    command = ["python3", "-c", program, claim_pods.ROOT, *arguments]
    return claim_pods.make_pod(
        namespace, claim, _PURPOSE, {"image": image, "command": command}, read_only=True
    )


def parse(log: str) -> list[ClaimEntry]:
    """Return what the pod has printed. Raises CommandError."""
    try:
        return [ClaimEntry.model_validate(json.loads(line)) for line in log.splitlines() if line]
    except (ValueError, ValidationError):
        raise CommandError(f"the pod that reads the store has printed {log[:200]!r}") from None


def _has_succeeded(pod: PodView) -> bool:
    return pod.phase == "Succeeded"
