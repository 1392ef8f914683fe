"""How pods reach the artefact store: by a claim that they mount, or by the address of a bucket."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from enginewright_contract.schemes import scheme_of
from enginewright_contract.task import STORE_CREDENTIALS_PATH, STORE_PATH, STORE_VARIABLE
from pydantic import BaseModel, ConfigDict

STORE_VOLUME: Final = "store"  # name of the claim's volume, or of the Secret's
# Webhooks add no identity of a service account to these containers, which never read the store
_WITHOUT_IDENTITY: Final[Mapping[str, str]] = {
    "azure.workload.identity/skip-containers": "server;sidecar",
    "eks.amazonaws.com/skip-containers": "server,sidecar",
}


class StoreBucket(BaseModel):
    """The part of a bucket that holds one namespace's artefacts, and who may use it."""

    model_config = ConfigDict(frozen=True)

    uri: str  # `BUCKET_ADDRESS`
    secret: str | None = None  # in the pods' namespace; else the pods' own identity counts
    account: str | None = None  # service account of pods that have no other


@dataclass(frozen=True)
class StoreAccess:
    """The store of one namespace."""

    claim: str  # name of the PersistentVolumeClaim; not used with a bucket
    bucket: StoreBucket | None = None

    @property
    def place(self) -> str:
        """Return what identifies the store, for Jobs and for serving pods: the bucket's address, or the claim."""
        return self.bucket.uri if self.bucket else f"claim {self.claim}"

    def volumes(self, *, read_only: bool = False) -> list[dict[str, Any]]:
        """Return the volumes of a pod; the Secret is optional, so that the stage reports a missing one."""
        if self.bucket is None:
            claim = {"claimName": self.claim, **({"readOnly": True} if read_only else {})}
            return [{"name": STORE_VOLUME, "persistentVolumeClaim": claim}]
        if self.bucket.secret is None:
            return []
        secret = {"secretName": self.bucket.secret, "optional": True}
        return [{"name": STORE_VOLUME, "secret": secret}]

    def mounts(self, *, read_only: bool = False) -> list[dict[str, Any]]:
        """Return where a container that uses the store mounts them."""
        if self.bucket is None:
            only = {"readOnly": True} if read_only else {}
            return [{"name": STORE_VOLUME, "mountPath": STORE_PATH, **only}]
        return [
            {"name": volume["name"], "mountPath": STORE_CREDENTIALS_PATH, "readOnly": True}
            for volume in self.volumes()
        ]

    def env(self) -> Iterable[Mapping[str, Any]]:
        """Return the variables of a container that uses the store."""
        if self.bucket is None:
            return ()
        return ({"name": STORE_VARIABLE, "value": self.bucket.uri},)

    def account(self, own: str | None) -> str | None:
        """Return the service account of a pod: its `own` if it has one, or None for the default."""
        return own or (self.bucket.account if self.bucket else None)

    def lends_account(self, own: str | None) -> bool:
        """Return whether a pod has the store's service account: it has no other of its `own`."""
        ours = self.bucket.account if self.bucket else None
        return ours is not None and (own or ours) == ours

    def labels(self) -> Mapping[str, str]:
        """Return the labels that a pod needs for its identity."""
        if self.bucket is None or not self.bucket.account:
            return {}
        scheme = scheme_of(self.bucket.uri)
        return scheme.identity_labels if scheme else {}

    def annotations(self, own: str | None) -> Mapping[str, str]:
        """Return the annotations that keep the bucket's identity from servers and sidecars."""
        return _WITHOUT_IDENTITY if self.lends_account(own) else {}
