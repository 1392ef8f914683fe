"""The paths in a pod as one value, so that tests and preflight can use others."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from enginewright_contract import task


@dataclass(frozen=True)
class Paths:
    """The contract's paths under one root."""

    work: Path
    store: Path  # of a volume
    store_credentials: Path  # of a bucket
    images_credentials: Path  # of the repository of OCI images
    credentials: Path
    samples_credentials: Path
    calibration_credentials: Path
    source: Path
    samples: Path
    calibration: Path
    extensions: Path  # one folder per claim
    processing: Path  # likewise
    processing_credentials: Path  # one folder per step
    artifact: Path
    artifact_image: Path  # OCI image of the artefact, if this is a folder
    stable: Path  # golden samples of another revision
    termination_log: Path
    probe_token: Path  # shared by the containers of a pod
    runtime_cache: Path  # outlives restarts of the server's container
    tokens: Path  # of clients, one file each
    tls: Path  # certificate and key
    release: Path  # an annotation that the operator writes
    shadow: Path  # likewise
    store_address: str | None = None  # of a bucket; otherwise the store is a volume
    node_cache: str | None = None  # HOST:PORT
    images: str | None = None  # repository for OCI images of artefacts

    @classmethod
    def under(cls, root: Path) -> Self:
        """Return the contract's paths, each prefixed with `root`."""

        def place(path: str) -> Path:
            return root / path.lstrip("/")

        return cls(
            work=place(task.WORK_PATH),
            store=place(task.STORE_PATH),
            store_credentials=place(task.STORE_CREDENTIALS_PATH),
            images_credentials=place(task.IMAGES_CREDENTIALS_PATH),
            credentials=place(task.CREDENTIALS_PATH),
            samples_credentials=place(task.SAMPLES_CREDENTIALS_PATH),
            calibration_credentials=place(task.CALIBRATION_CREDENTIALS_PATH),
            source=place(task.SOURCE_PATH),
            samples=place(task.SAMPLES_PATH),
            calibration=place(task.CALIBRATION_PATH),
            extensions=place(task.EXTENSIONS_PATH),
            processing=place(task.PROCESSING_PATH),
            processing_credentials=place(task.PROCESSING_CREDENTIALS_PATH),
            artifact=place(task.ARTIFACT_PATH),
            artifact_image=place(task.ARTIFACT_IMAGE_PATH),
            stable=place(task.STABLE_PATH),
            termination_log=place(task.TERMINATION_LOG),
            probe_token=place(task.PROBE_LANE_PATH),
            runtime_cache=place(task.RUNTIME_CACHE_PATH),
            tokens=place(task.TOKENS_PATH),
            tls=place(task.TLS_PATH),
            release=place(task.POD_INFO_PATH) / task.RELEASE_FILE,
            shadow=place(task.POD_INFO_PATH) / task.SHADOW_FILE,
        )

    @classmethod
    def from_environment(cls) -> Self:
        """Return the paths of this process: the contract's, under `ENGINEWRIGHT_ROOT` if set."""
        paths = cls.under(Path(os.environ.get(task.ROOT_VARIABLE, "/")))
        return replace(
            paths,
            store_address=os.environ.get(task.STORE_VARIABLE) or None,
            node_cache=os.environ.get(task.CACHE_VARIABLE) or None,
            images=os.environ.get(task.IMAGES_VARIABLE) or None,
        )
