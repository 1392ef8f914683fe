"""Stores whose collection runs during a test: the name of a namespace determines when it is due."""

import itertools
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from enginewright.manifests.collection_outcome import CollectionOutcome
from enginewright.plan.store.collection import first_due
from enginewright.plan.types import CollectionConfig
from enginewright_contract.collection import Collected

from tests.e2e.devices import COMPONENT
from tests.e2e.harness import Namespace, eventually
from tests.e2e.stored import CLAIM

_WINDOW: Final = timedelta(seconds=15)
UNUSED: Final = timedelta(days=60)  # twice as long as the chart's store.gc.unusedFor


def names_due(wait: timedelta) -> Iterator[str]:
    """Yield names of namespaces whose first collection is due after `wait`, or up to 15 s later."""
    now, interval = datetime.now(UTC), CollectionConfig().interval
    for number in itertools.count():
        name = f"collected-{number}"
        if wait <= first_due(name, interval, now) - now <= wait + _WINDOW:
            yield name


def claim() -> dict[str, Any]:
    """Return the claim of a store, which outlives the models that it was made for."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }


def abandon(artifact: Path, *unused: timedelta) -> list[Path]:
    """Copy an artefact, and set how long the copies were not used; the artefact itself was not for even longer."""
    copies = [artifact.with_name(str(number) * len(artifact.name)) for number in range(len(unused))]
    for copy in copies:
        shutil.copytree(artifact, copy)
        for path in (copy, *copy.rglob("*")):
            original = (artifact / path.relative_to(copy)).stat()
            os.chown(path, original.st_uid, original.st_gid)
    for item, age in zip((artifact, *copies), (2 * max(unused), *unused), strict=True):
        used = time.time() - age.total_seconds()
        os.utime(item / "manifest.json", (used, used))
    return copies


def size(artifact: Path) -> int:
    """Return the bytes of an artefact."""
    return sum(path.stat().st_size for path in artifact.rglob("*") if path.is_file())


def jobs(namespace: Namespace) -> list[dict[str, Any]]:
    """Return the Jobs that collect a namespace's store."""
    return namespace.items("jobs", f"{COMPONENT}=collect")


def wait_collected(namespace: Namespace, seconds: float) -> Collected:
    """Return the result of a namespace's only collection, once there is one."""

    def result() -> Collected | None:
        annotations = [job["metadata"].get("annotations") or {} for job in jobs(namespace)]
        (outcome,) = map(CollectionOutcome.read, annotations or [{}])
        assert not (outcome and outcome.failure), outcome
        return outcome.collected if outcome else None

    collected = eventually(result, seconds, "the result of a collection")
    assert collected
    return collected
