"""The Job that the operator creates, run by the real stage on a real volume: only what no object names goes."""

import os
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from enginewright.plan.store.collection import (
    Blocked,
    NamespaceObjects,
    collection,
    find_needed_keys,
)
from enginewright_contract.collection import MOST_KEPT
from enginewright_contract.keys import sha256_text
from enginewright_contract.task import TASK_VARIABLE
from enginewright_runtime.store import Store

from tests.support.programs import run_program
from tests.support.serving import read_report
from tests.support.store_process import publish
from tests.unit.test_plan_collection import facts
from tests.unit.test_plan_needed_keys import model, revision
from tests.unit.test_store_volume import content

WANTED, KEPT, UNNEEDED = ("ab" * 32, "cd" * 32, "ef" * 32)
AGE = 31 * 86_400  # seconds: longer than the chart's default


def test_only_unnamed_artefacts_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    (tmp_path / "dev").mkdir()
    for key in (WANTED, KEPT, UNNEEDED):
        publish(Store(root), key, content(tmp_path / key[:2], key.encode()))
    for manifest in root.glob("prepared/*/manifest.json"):
        os.utime(manifest, (time.time() - AGE,) * 2)
    others = (model(sha256_text(str(number))) for number in range(MOST_KEPT - 2))
    needed = find_needed_keys(
        NamespaceObjects(models=(model(WANTED), *others), revisions=(revision(KEPT),))
    )
    now = datetime.now(UTC)
    job = collection(replace(facts(), now=now), "collect-1", needed, now, None)
    assert not isinstance(job, Blocked)
    (container,) = job["spec"]["template"]["spec"]["containers"]  # type: ignore[index]  # JSON
    env = {item["name"]: item["value"] for item in container["env"]}
    done = run_program(
        [sys.executable, "-m", "enginewright_runtime", *container["command"][1:]],
        env={**os.environ, "ENGINEWRIGHT_ROOT": str(tmp_path), **env},
        timeout=300,
        code=None,
    )
    assert TASK_VARIABLE in env
    assert done.returncode == 0, done.stderr
    report = read_report(tmp_path)
    assert report.collected is not None
    collected = report.collected
    assert (collected.artifacts, collected.needed_artifacts, collected.removed_artifacts) == (
        3,
        2,
        1,
    )
    assert {path.parent.name for path in root.glob("prepared/*/manifest.json")} == {WANTED, KEPT}
