"""Models in OCI registries: oci://REGISTRY/REPOSITORY:TAG or @DIGEST.

An artefact is a manifest whose layers are files named by their title annotation, as ORAS pushes them, or a single
layer that is the model or an archive of it. Sources: OCI image and distribution specifications 1.1.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any, Final

from enginewright_contract.schemes import OCI
from typing_extensions import override

from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.remote.failures import unreachable
from enginewright_runtime.remote.peers import Peers
from enginewright_runtime.sources.base import Entry, Missing, unsafe
from enginewright_runtime.sources.registry_login import Login, endpoint, login
from enginewright_runtime.sources.web import Web
from enginewright_runtime.sources.web_source import Located, WebSource, describe_change

_ADDRESS: Final = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(?::\d+)?)/(?P<repository>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_TITLE: Final = "org.opencontainers.image.title"
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES: Final = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_SHA256: Final = re.compile("sha256:[0-9a-f]{64}")
_REMEDY: Final = f"check the credentials in secretRef (keys {OCI.keys}) and that they may pull"


class RegistrySource(WebSource):
    """The layers of an artefact as files of a folder; a single layer is a file."""

    def __init__(self, uri: str, secret: Secret) -> None:
        parts = _ADDRESS.fullmatch(uri.removeprefix(OCI.prefix))
        if parts is None:
            raise unreachable(
                f"the source {uri!r} names no artefact",
                "write oci://REGISTRY/REPOSITORY:TAG or oci://REGISTRY/REPOSITORY@sha256:DIGEST",
            )
        host, repository = parts["host"], parts["repository"]
        self._reference = parts["digest"] or parts["tag"] or "latest"
        at = endpoint(secret, host, repository)
        self._base = at.url
        account = login(secret, host)
        super().__init__(
            Web(secret, Login(account, repository, plain=at.plain), _REMEDY, Peers()), uri
        )
        self._layers: dict[str, Located] = {}
        self._digest: str | None = None

    @property
    @override
    def pin(self) -> str | None:
        return f"manifest {self._digest}" if self._digest else None

    @override
    def current_pin(self) -> str | None:
        url = f"{self._base}/manifests/{self._reference}"
        answer = self._web.head(url, {"Accept": ", ".join((*_MANIFESTS, *_INDEXES))})
        digest = answer.headers.get("Docker-Content-Digest", "") if answer else ""
        return f"manifest {digest}" if _SHA256.fullmatch(digest) else None

    @override
    def find(self) -> str | None:
        manifest = self._manifest(self._reference, indexes=True)
        layers = [layer for layer in manifest.get("layers", []) if layer.get("size", 0) > 0]
        if not layers:
            raise unreachable(
                f"{self.shown} has no files", "push the model into it, as `oras push` does"
            )
        for layer in layers:
            self._add(layer, alone=len(layers) == 1)
        return next(iter(self._layers)) if len(layers) == 1 else None

    @override
    def _entries(self, *, deep: bool) -> Iterator[Entry]:
        for name, layer in self._layers.items():
            if deep or "/" not in name:
                yield Entry(name, layer.size)

    @override
    def _locate(self, path: str) -> Located:
        layer = self._layers.get(PurePosixPath(path).as_posix())
        if layer is None:
            raise Missing(f"{self.shown} has no layer with the title {path!r}")
        return layer

    def _manifest(self, reference: str, *, indexes: bool) -> dict[str, Any]:
        accept = ", ".join((*_MANIFESTS, *(_INDEXES if indexes else ())))
        url = f"{self._base}/manifests/{reference}"
        try:
            body = self._web.read(url, headers={"Accept": accept}).body
        except Missing as missing:
            raise unreachable(
                f"{self.shown}: there is no such artefact, {missing}", "check repository and tag"
            ) from None
        sha256 = hashlib.sha256(body).hexdigest()
        if reference.startswith("sha256:") and reference != f"sha256:{sha256}":
            raise describe_change(
                f"the manifest of {self.shown}", reference.partition(":")[2], sha256
            )
        self._digest = self._digest or f"sha256:{sha256}"
        try:
            manifest = json.loads(body)
        except (ValueError, RecursionError):
            manifest = None
        if not isinstance(manifest, dict):
            raise unreachable(f"{self.shown}: the registry does not answer with a manifest")
        if "manifests" in manifest:
            return self._manifest(self._only(manifest["manifests"]), indexes=False)
        return manifest

    def _only(self, manifests: list[dict[str, Any]]) -> str:
        # indexes also list attestations, which are not content
        artefacts = [
            manifest
            for manifest in manifests
            if manifest.get("platform", {}).get("architecture") != "unknown"
        ]
        if len(artefacts) != 1 or not _SHA256.fullmatch(str(artefacts[0].get("digest"))):
            raise unreachable(
                f"{self.shown} is an index of {len(artefacts)} manifests",
                "name one of them: oci://REGISTRY/REPOSITORY@sha256:DIGEST",
            )
        return str(artefacts[0]["digest"])

    def _add(self, layer: dict[str, Any], *, alone: bool) -> None:
        digest, size = str(layer.get("digest", "")), layer.get("size")
        if not _SHA256.fullmatch(digest) or not isinstance(size, int):
            raise unreachable(f"{self.shown}: a layer has no sha256 digest or no size")
        title = (layer.get("annotations") or {}).get(_TITLE)
        if title is None and not alone:
            return  # not a file, but e.g. the file system of a container image
        sha256 = digest.partition(":")[2]
        name = str(title) if title else sha256[:12]
        if cause := unsafe(name):
            raise unreachable(
                f"{self.shown}: a layer has the title {name!r}, which {cause}",
                "push it with a relative path",
            )
        name = PurePosixPath(name).as_posix()
        if name in self._layers:
            raise unreachable(f"{self.shown} has two layers with the title {name!r}")
        self._layers[name] = Located(f"{self._base}/blobs/{digest}", name, size, sha256)
