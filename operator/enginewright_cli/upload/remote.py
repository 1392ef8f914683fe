"""Uploads to buckets and to OCI registries, with the runtime's own clients and this machine's credentials."""

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from enginewright_contract.schemes import OCI
from enginewright_runtime.core.logs import TransferProgress
from enginewright_runtime.oci.deadline import PushDeadline
from enginewright_runtime.oci.layout import MANIFEST_TYPE, digest_of
from enginewright_runtime.oci.registry import RegistryWriter
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.store.objects import Objects

from enginewright_cli.reporting import CommandError, WrongUsage
from enginewright_cli.upload.files import CHUNK, LocalFile

_log: Final = logging.getLogger(__name__)
_TAG: Final = re.compile(r"[^/]+/[^:@]+:[\w][\w.-]{0,127}")
_EMPTY: Final = b"{}"
_EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
_ARTIFACT_TYPE: Final = "application/vnd.onnx.model"
_LAYER_TYPE: Final = "application/octet-stream"
_PUSH_SECONDS: Final = 24 * 3600.0

Progress = Callable[[str], None]


def to_bucket(
    folder: str, files: Sequence[LocalFile], *, overwrite: bool, progress: Progress
) -> None:
    """Write files below an address of a bucket, and read each again. Raises CommandError and StageFailure."""
    objects = Objects(folder, Secret(), by_hand=True)
    for file in files:
        before = objects.info(file.name)
        if before is not None:
            same = objects.receive(file.name, before.size)
            if same and same.sha256 == file.sha256:
                progress(f"{file.name}: is there already, sha256 {file.sha256[:12]} matches")
                continue
            if not overwrite:
                raise CommandError(
                    f"{folder}/{file.name} exists with other content; name another path, or replace it"
                    " with --overwrite: a model that names it reports SourceChanged until it is refreshed"
                )
        shown = TransferProgress(_log, f"uploading {file.name}", file.size)
        objects.put_file(file.name, file.path, file.size, shown)
        stored = objects.receive(file.name, file.size)
        if stored is None or stored.sha256 != file.sha256:
            raise CommandError(f"{file.name}: the digest in the bucket differs; run it again")
        progress(f"{file.name}: {file.size:,} bytes, sha256 {file.sha256[:12]} matches")


def to_registry(address: str, files: Sequence[LocalFile], progress: Progress) -> str:
    """Push files as layers of one artefact, as ORAS does; return its digest. Raises CommandError and StageFailure."""
    rest = address.removeprefix(OCI.prefix)
    if not _TAG.fullmatch(rest):
        raise WrongUsage(f"{address}: write oci://REGISTRY/REPOSITORY:TAG")
    repository, _, tag = rest.rpartition(":")
    writer = RegistryWriter(
        repository, _account(rest.partition("/")[0]), PushDeadline(repository, _PUSH_SECONDS)
    )
    empty = digest_of(_EMPTY)
    shown = TransferProgress(_log, "uploading", None)
    writer.put_blob(empty, len(_EMPTY), lambda: iter((_EMPTY,)), shown)
    for file in files:
        digest = f"sha256:{file.sha256}"
        if not writer.has_blob(digest, file.size):
            writer.put_blob(digest, file.size, partial(_chunks, file), shown)
        progress(f"{file.name}: {file.size:,} bytes, {digest[:19]}")
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": _ARTIFACT_TYPE,
        "config": {"mediaType": _EMPTY_TYPE, "digest": empty, "size": len(_EMPTY)},
        "layers": [
            {
                "mediaType": _LAYER_TYPE,
                "digest": f"sha256:{file.sha256}",
                "size": file.size,
                "annotations": {"org.opencontainers.image.title": file.name},
            }
            for file in files
        ],
    }
    content = json.dumps(manifest).encode()
    writer.put_manifest(tag, content)
    return digest_of(content)


def _account(host: str) -> Secret:
    """Return the account that `docker login` has stored for a registry, if it is in the file itself."""
    path = Path.home() / ".docker/config.json"
    try:
        text = path.read_text()
        accounts = json.loads(text).get("auths") or {}
    except (OSError, ValueError, AttributeError):
        return Secret()
    has_account = any(host in server and entry.get("auth") for server, entry in accounts.items())
    return Secret({".dockerconfigjson": text} if has_account else {})


def _chunks(file: LocalFile) -> Iterator[bytes]:
    with file.path.open("rb") as reader:
        yield from iter(partial(reader.read, CHUNK), b"")
