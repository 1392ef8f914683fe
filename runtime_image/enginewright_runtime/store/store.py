"""The artefact store, on any medium: an artefact exists once its manifest does.

Its publisher decides whether what is there under its key stays or is replaced, see `credit`. Readers get the
one or the other: what they have read of a replaced artefact does not match its digests, and they read again.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from enginewright_contract.manifest import LARGEST_MANIFEST, MANIFEST_NAME, ArtifactFile, Manifest
from enginewright_contract.node_cache import scope
from enginewright_contract.reasons import Reason

from enginewright_runtime.core.digests import Copied, file_sha256
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.core.logs import TransferProgress
from enginewright_runtime.store.artifacts import (
    PREPARED,
    Artifact,
    ArtifactKind,
    difference,
    is_inside,
    is_name,
    shorten,
)
from enginewright_runtime.store.disk_errors import available
from enginewright_runtime.store.exported import Exported
from enginewright_runtime.store.medium import Medium, Publication
from enginewright_runtime.store.mounted_image import MountedImage
from enginewright_runtime.store.node_cache import NodeCache
from enginewright_runtime.store.volume import VolumeMedium

_log: Final = logging.getLogger(__name__)
REPORTS: Final = "reports"
CACHES: Final = "caches"  # may be lost: builders' timings
_LARGEST_CACHE: Final = 256 << 20
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
# Substrings of RandomNormal, RandomNormalLike, RandomUniform, RandomUniformLike, Multinomial, Bernoulli
_RANDOM: Final = (b"RandomNormal", b"RandomUniform", b"Multinomial", b"Bernoulli")
_CHUNK: Final = 4 << 20  # bytes
_OVERLAP: Final = max(map(len, _RANDOM)) - 1


def keep_first(present: Manifest, made: Manifest) -> bool:
    """Let what is in the store stay: the rule of publishers that have proved nothing, such as an import."""
    del present, made
    return True


class Store:
    """The artefacts of one kind in a store, on a medium or a volume mounted at a path.

    Safe for concurrent processes. Files are read from the mounted `image` first, then the node's `cache`, if there
    are any. Methods raise StageFailure: StoreUnavailable; those that write, StorageFull too; ArtifactCorrupt, or of
    an engine EngineCorrupt, for an artefact that is damaged or, with an earlier version's manifest, cannot be verified.
    """

    def __init__(
        self,
        place: Path | Medium,
        kind: ArtifactKind = PREPARED,
        cache: NodeCache | None = None,
        image: MountedImage | None = None,
    ) -> None:
        self._medium = VolumeMedium(place) if isinstance(place, Path) else place
        self._kind = kind
        self._cache = cache
        self._image = image

    def find(self, key: str) -> Manifest | None:
        """Return the manifest of an artefact, if it exists, without checking its files."""
        artifact = Artifact(self._kind, key)
        with available():
            text = self._medium.get(artifact.manifest, LARGEST_MANIFEST)
        if text is None:
            return None
        manifest = artifact.parse_trusted(text)
        self._refuse_earlier(artifact, manifest)
        return manifest

    def find_intact(self, key: str) -> Manifest | None:
        """Return the artefact's manifest if it exists and every file matches it; count it as used now."""
        with available():
            self._medium.renew(Artifact(self._kind, key))  # first: what is verified after it stays
        try:
            manifest = self.find(key)
            while manifest is not None:
                try:
                    self.verify(manifest)
                    break
                except StageFailure as failure:
                    manifest = self._find_newer(manifest, failure)
        except StageFailure as failure:
            if failure.reason is not self._kind.damaged:
                raise
            _log.warning("%s", failure.message)
            return None
        return manifest

    def read(self, key: str, target: Path) -> Manifest:
        """Copy an artefact to `target`, verifying each file, the manifest last; raises ArtifactMissing too."""
        return self._read(key, target, lambda manifest: manifest.files)

    def read_golden(self, key: str, target: Path) -> Manifest:
        """Copy only an artefact's manifest and what is golden to `target`, as `read`."""

        def golden(manifest: Manifest) -> tuple[ArtifactFile, ...]:
            names = (manifest.golden_inputs, manifest.golden_outputs, manifest.golden_parts)
            return tuple(file for file in manifest.files if file.path in names)

        return self._read(key, target, golden)

    def _read(
        self, key: str, target: Path, chosen: Callable[[Manifest], tuple[ArtifactFile, ...]]
    ) -> Manifest:
        manifest = self.find(key)
        while manifest is not None:
            try:
                self._copy_files(manifest, chosen(manifest), target)
            except StageFailure as failure:
                newer = self._find_newer(manifest, failure)
                for file in chosen(manifest):
                    (target / file.path).unlink(missing_ok=True)
                manifest = newer
            else:
                return manifest
        raise self._missing(key)

    def _copy_files(
        self, manifest: Manifest, files: tuple[ArtifactFile, ...], target: Path
    ) -> None:
        """Copy an artefact's manifest and some of its files, verified, to `target`."""
        with available(written="the folder of the pod"):
            target.mkdir(parents=True, exist_ok=True)
            (target / MANIFEST_NAME).unlink(missing_ok=True)
            part = scope(manifest)
            for file in files:
                self._copy_out(Artifact(self._kind, manifest.key), part, file, target / file.path)
            (target / MANIFEST_NAME).write_text(manifest.to_json())

    def _find_newer(self, read: Manifest, failure: StageFailure) -> Manifest | None:
        """Return what has replaced a damaged artefact since its manifest was read, None if it was removed.

        Raises the failure to read it if it is still the same.
        """
        if failure.reason is not self._kind.damaged:
            raise failure
        present = self.find(read.key)
        if present == read:
            raise failure
        return present

    def _missing(self, key: str) -> StageFailure:
        return StageFailure(
            Reason.ARTIFACT_MISSING,
            f"the store has no {self._kind.title} with key {key[:12]}",
            remedy=f"no action needed: {self._kind.again}",
        )

    def verify(self, manifest: Manifest) -> None:
        """Check every file of an artefact."""
        artifact = Artifact(self._kind, manifest.key)
        with available():
            for file in manifest.files:
                _check(artifact, file, self._medium.copy(artifact, file, None))

    @contextmanager
    def open_file(self, key: str, file: ArtifactFile) -> Iterator[BinaryIO]:
        """Open a file of an artefact to read; see `check`."""
        artifact = Artifact(self._kind, key)
        with available(), self._medium.open_file(artifact, file) as reader:
            if reader is None:
                raise artifact.corrupt(f"file {file.path} is missing")
            yield reader

    def check(self, key: str, file: ArtifactFile, copied: Copied) -> None:
        """Raise unless what was read of `opened` is the file."""
        _check(Artifact(self._kind, key), file, copied)

    def publish(
        self,
        key: str,
        files: Mapping[str, Path],
        describe: Callable[[tuple[ArtifactFile, ...]], Manifest],
        keeps: Callable[[Manifest, Manifest], bool] = keep_first,
    ) -> tuple[Manifest, bool]:
        """Store files, by path inside the artefact, unless an intact one with this key exists and stays.

        `describe` returns the manifest for the copied files; `keeps`, given the manifest in the store and that one,
        whether the former stays, which otherwise is replaced. Returns the manifest in the store, and whether it existed
        already. Raises InvalidModel too, for a path that no pod can create.
        """
        for name in files:
            if not is_inside(name):
                raise StageFailure(
                    Reason.INVALID_MODEL,
                    f"the path of the file {shorten(name)} is too long, or not one in an artefact",
                    remedy="give the model's external data files shorter names, in fewer folders",
                )
        present = self.find_intact(key)
        if present is not None and keeps(present, describe(_list_files(files))):
            return present, True
        kept: list[Manifest] = []

        def stays(made: Manifest) -> bool:
            present = self.find_intact(key)
            kept[:] = [present] if present is not None and keeps(present, made) else []
            return bool(kept)

        with available():
            manifest, is_stored = self._medium.publish(
                Publication(Artifact(self._kind, key), files, describe, stays)
            )
        return (manifest, False) if is_stored else (kept[0], True)

    def publish_folder(self, manifest: Manifest, folder: Path) -> bool:
        """Store an artefact from a folder, once all of it is checked; return whether the store had an intact one."""
        exported = Exported(self._kind, manifest, folder)
        files = exported.files()

        def compare(listed: tuple[ArtifactFile, ...]) -> Manifest:
            for file, copied in zip(manifest.files, listed, strict=True):
                exported.check(file, Copied(copied.sha256, copied.size_bytes))
            return manifest

        return self.publish(manifest.key, files, compare)[1]

    def put_report(self, job: str, stage: str, text: str) -> None:
        """Write a stage's full report to reports/<job>/<stage>.json."""
        if not is_name(job) or not is_name(stage):
            raise StageFailure(Reason.INTERNAL_ERROR, f"{job}/{stage} cannot name a report")
        with available():
            self._medium.put(f"{REPORTS}/{job}/{stage}.json", text.encode())

    def get_cache(self, name: str) -> bytes | None:
        """Return what was last stored under `name`, unless it is damaged."""
        with available():
            content = self._medium.get(_cache(name), _LARGEST_CACHE)
        if content is None:
            return None
        digest, cache = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        return cache if hashlib.sha256(cache).digest() == digest else None

    def put_cache(self, name: str, content: bytes) -> None:
        """Store `content` under `name`, prefixed with its digest; replace an earlier one."""
        with available():
            self._medium.put(_cache(name), hashlib.sha256(content).digest() + content)

    def _copy_out(self, artifact: Artifact, part: str, file: ArtifactFile, target: Path) -> None:
        """Copy and verify a file, from the mounted image or the artefact's `part` of the node's cache if it is there."""
        target.parent.mkdir(parents=True, exist_ok=True)
        progress = TransferProgress(_log, f"copying {file.path}", file.size_bytes)
        try:
            if self._image:
                with target.open("wb") as writer:
                    if self._image.read(file, writer, progress.add):
                        return
                progress.restart()
            if self._cache is None:
                self._copy(artifact, file, target, progress.add)
                return
            with target.open("wb") as writer:
                if self._cache.read(part, file, writer, progress.add):
                    return
            progress.restart()
            with self._cache.offer(part, file, target, progress.add) as on_chunk:
                self._copy(artifact, file, target, on_chunk)
        except StageFailure:
            target.unlink(missing_ok=True)
            raise

    def _copy(
        self,
        artifact: Artifact,
        file: ArtifactFile,
        target: Path,
        on_chunk: Callable[[int], None],
    ) -> None:
        with target.open("wb") as writer:
            copied = self._medium.copy(artifact, file, writer, on_chunk)
        _check(artifact, file, copied)

    def _refuse_earlier(self, artifact: Artifact, manifest: Manifest) -> None:
        """Refuse an artefact that new pods could not verify, so that it is rebuilt."""
        if manifest.varying is not None:
            return
        model = next(file for file in manifest.files if file.path == manifest.model)
        with available(), self._medium.open_file(artifact, model) as reader:
            if reader is not None and lacks_distributions(manifest, reader):
                raise StageFailure(
                    self._kind.damaged,
                    f"{self._kind.title} {manifest.key[:12]} was built by an earlier version, which did"
                    " not record the distribution of random outputs",
                    remedy=f"no action needed: {self._kind.again}",
                )


def lacks_distributions(manifest: Manifest, model: BinaryIO) -> bool:
    """Return whether an artefact predates distributions of outputs and may have random ones, which fail in new pods.

    The .onnx file is searched, not parsed, which could need more memory than a container that only copies has.
    """
    if manifest.varying is not None:
        return False
    end = b""
    while chunk := model.read(_CHUNK):
        text = end + chunk
        if any(name in text for name in _RANDOM):
            return True
        end = text[-_OVERLAP:]
    return False


def _check(artifact: Artifact, file: ArtifactFile, copied: Copied | None) -> None:
    if what := difference(file, copied):
        raise artifact.corrupt(what)


def _cache(name: str) -> str:
    if not is_name(name):
        raise StageFailure(Reason.INTERNAL_ERROR, f"{name!r} cannot name a cache")
    return f"{CACHES}/{name}"


def _list_files(files: Mapping[str, Path]) -> tuple[ArtifactFile, ...]:
    """Return what a manifest lists of files, by path inside the artefact."""
    copied = {name: file_sha256(path) for name, path in files.items()}
    return tuple(
        ArtifactFile(path=name, sha256=one.sha256, size_bytes=one.size_bytes)
        for name, one in copied.items()
    )
