"""The paths in a pod as one value, so that tests and preflight can use others."""

import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Self

from enginewright_contract import task


@dataclass(frozen=True)
class Paths:
    """The contract's paths under one root."""

    work: Path = field(metadata={"path": task.WORK_PATH})
    store: Path = field(metadata={"path": task.STORE_PATH})  # of a volume
    store_credentials: Path = field(metadata={"path": task.STORE_CREDENTIALS_PATH})  # of a bucket
    # of the repository of OCI images
    images_credentials: Path = field(metadata={"path": task.IMAGES_CREDENTIALS_PATH})
    credentials: Path = field(metadata={"path": task.CREDENTIALS_PATH})
    samples_credentials: Path = field(metadata={"path": task.SAMPLES_CREDENTIALS_PATH})
    calibration_credentials: Path = field(metadata={"path": task.CALIBRATION_CREDENTIALS_PATH})
    source: Path = field(metadata={"path": task.SOURCE_PATH})
    samples: Path = field(metadata={"path": task.SAMPLES_PATH})
    calibration: Path = field(metadata={"path": task.CALIBRATION_PATH})
    extensions: Path = field(metadata={"path": task.EXTENSIONS_PATH})  # one folder per claim
    processing: Path = field(metadata={"path": task.PROCESSING_PATH})  # likewise
    # one folder per step
    processing_credentials: Path = field(metadata={"path": task.PROCESSING_CREDENTIALS_PATH})
    artifact: Path = field(metadata={"path": task.ARTIFACT_PATH})
    # OCI image of the artefact, if this is a folder
    artifact_image: Path = field(metadata={"path": task.ARTIFACT_IMAGE_PATH})
    # golden samples of another revision
    stable: Path = field(metadata={"path": task.STABLE_PATH})
    termination_log: Path = field(metadata={"path": task.TERMINATION_LOG})
    # shared by the containers of a pod
    probe_token: Path = field(metadata={"path": task.PROBE_LANE_PATH})
    # outlives restarts of the server's container
    runtime_cache: Path = field(metadata={"path": task.RUNTIME_CACHE_PATH})
    # of clients, one file each
    tokens: Path = field(metadata={"path": task.TOKENS_PATH})
    # certificate and key
    tls: Path = field(metadata={"path": task.TLS_PATH})
    # an annotation that the operator writes
    release: Path = field(metadata={"path": f"{task.POD_INFO_PATH}/{task.RELEASE_FILE}"})
    shadow: Path = field(metadata={"path": f"{task.POD_INFO_PATH}/{task.SHADOW_FILE}"})  # likewise
    start_times: Path = field(
        metadata={"path": f"{task.POD_INFO_PATH}/{task.TIMES_FILE}"}
    )  # likewise
    store_address: str | None = None  # of a bucket; otherwise the store is a volume
    node_cache: str | None = None  # HOST:PORT
    images: str | None = None  # repository for OCI images of artefacts

    @classmethod
    def under(cls, root: Path) -> Self:
        """Return the contract's paths, each prefixed with `root`."""
        placed = {item.name: item.metadata.get("path") for item in fields(cls)}
        return cls(**{name: root / path.lstrip("/") for name, path in placed.items() if path})

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
