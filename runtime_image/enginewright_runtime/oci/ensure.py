"""Pushes the OCI image of an artefact in the store, whose bytes are always the same, unless the repository has it."""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from enginewright_contract.manifest import ArtifactFile, Manifest
from enginewright_contract.reasons import Reason
from enginewright_contract.report import render

from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import TransferProgress, format_bytes
from enginewright_runtime.oci import Pushed
from enginewright_runtime.oci.deadline import PushDeadline
from enginewright_runtime.oci.layout import (
    Image,
    ImageLayer,
    digest_of,
    image_of,
    layers_of,
    tag_of,
)
from enginewright_runtime.oci.record import PushRecord
from enginewright_runtime.oci.registry import RegistryWriter
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.sources.base import Missing
from enginewright_runtime.store import Store

_log: Final = logging.getLogger(__name__)
_REMEDY: Final = "check store.images, and that pods of this namespace reach the registry"


def ensure_image(
    repository: str, credentials: Path, store: Store, manifest: Manifest, seconds: float
) -> Pushed:
    """Return the image of an artefact, pushed now or before; a failure does not fail the stage."""
    deadline = PushDeadline(repository, seconds)
    try:
        secret = Secret.read(credentials)
        writer = RegistryWriter(repository, secret, deadline)
        digest = _Push(writer, store, manifest, repository, deadline).ensure()
    except StageFailure as failure:
        # that of the reason is about sources
        is_ours = failure.reason is Reason.SOURCE_UNREACHABLE and failure.finding.remedy is None
        return _report_failure(render(failure.cause, _REMEDY) if is_ours else failure.message)
    except Missing as missing:
        return _report_failure(
            f"{missing}; create the repository, or check store.images.repository"
        )
    except OSError as error:  # of the pod's own disk
        return _report_failure(f"cannot read the artefact: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001 - the boundary: the artefact is in the store already
        _log.debug("internal error", exc_info=True)  # its text may have parts of the Secret
        cause = f"pushing to {repository} failed unexpectedly with {type(error).__name__}"
        return _report_failure(render(cause, Reason.INTERNAL_ERROR.remedy))
    return Pushed(f"{repository}@{digest}")


def _report_failure(why: str) -> Pushed:
    _log.warning("the artefact has no OCI image, and pods read it from the store: %s", why)
    return Pushed(failure=why)


class _Push:
    def __init__(
        self,
        writer: RegistryWriter,
        store: Store,
        manifest: Manifest,
        repository: str,
        deadline: PushDeadline,
    ) -> None:
        self._writer = writer
        self._manifest = manifest
        self._deadline = deadline
        self._files = _Files(store, manifest)
        self._layers = layers_of(manifest)
        self._tag = tag_of(manifest)
        self._record = PushRecord(store, repository, self._tag)

    def ensure(self) -> str:
        if (pushed := self._find_pushed()) is not None:
            _log.info("the repository has the image already")
            return pushed.digest
        digests = [self._put_layer(layer) for layer in self._layers]
        image = image_of(self._manifest, self._layers, digests)
        self._put(image.config)
        if self._writer.manifest(self._tag) != image.manifest:  # some tags cannot be set twice
            self._writer.put_manifest(self._tag, image.manifest)
        self._record.write(digests)
        return image.digest

    def _find_pushed(self) -> Image | None:
        """Return the image that a Job has pushed before, if all of it is still there."""
        digests = self._record.read(len(self._layers))
        if digests is None:
            return None
        image = image_of(self._manifest, self._layers, digests)
        if self._writer.manifest(self._tag) != image.manifest:
            return None
        sizes = {digest: layer.size for layer, digest in zip(self._layers, digests, strict=True)}
        blobs = {image.config_digest: len(image.config), **sizes}
        is_whole = all(self._writer.has_blob(digest, size) for digest, size in blobs.items())
        return image if is_whole else None

    def _put_layer(self, layer: ImageLayer) -> str:
        more = f" and {len(layer.files) - 1} more" if layer.files[1:] else ""
        name = f"{layer.files[0].path}{more}"
        self._deadline.begin(f"{name} ({format_bytes(layer.size)})")
        with self._files:
            digest = f"sha256:{self._hash(layer)}"
            if self._writer.has_blob(digest, layer.size):
                return digest
            progress = TransferProgress(_log, f"pushing {name}", layer.size)
            self._writer.put_blob(
                digest, layer.size, lambda: layer.chunks(self._files.open_file), progress
            )
            self._deadline.on_stored()
        return digest

    def _hash(self, layer: ImageLayer) -> str:
        digest = hashlib.sha256()
        for chunk in layer.chunks(self._files.open_checked):
            self._deadline.check()
            digest.update(chunk)
        return digest.hexdigest()

    def _put(self, content: bytes) -> None:
        digest = digest_of(content)
        if not self._writer.has_blob(digest, len(content)):
            progress = TransferProgress(_log, "pushing the configuration", len(content))
            self._writer.put_blob(digest, len(content), lambda: iter((content,)), progress)


class _Files:
    """The files of an artefact in the store; the last one stays open, because a layer is read twice."""

    def __init__(self, store: Store, manifest: Manifest) -> None:
        self._store = store
        self._key = manifest.key
        self._stack = ExitStack()
        self._last: tuple[ArtifactFile, BinaryIO] | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._last = None
        self._stack.close()

    @contextmanager
    def open_file(self, file: ArtifactFile) -> Iterator[BinaryIO]:
        if self._last is None or self._last[0] != file:
            self.__exit__()
            self._last = file, self._stack.enter_context(self._store.open_file(self._key, file))
        reader = self._last[1]
        reader.seek(0)
        yield reader

    @contextmanager
    def open_checked(self, file: ArtifactFile) -> Iterator["_Counted"]:
        """Open a file; raise after reading if it is not the one that the manifest lists."""
        with self.open_file(file) as reader:
            counted = _Counted(reader)
            yield counted
        self._store.check(self._key, file, counted.copied)


class _Counted:
    def __init__(self, reader: BinaryIO) -> None:
        self._reader = reader
        self._digest = hashlib.sha256()
        self._size = 0

    def read(self, size: int) -> bytes:
        chunk = self._reader.read(size)
        self._digest.update(chunk)
        self._size += len(chunk)
        return chunk

    @property
    def copied(self) -> Copied:
        return Copied(self._digest.hexdigest(), self._size)
