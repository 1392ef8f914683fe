"""The folders of one preflight: a pod for every Job, and the store that all of them share.

The pods have the locales of the runtime image: whether a model with strings loads depends on the
locales that are installed. The image's Containerfile creates the same links.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from enginewright_contract import task as contract
from enginewright_contract.facts import FetchFacts
from enginewright_contract.manifest import MANIFEST_NAME, Manifest

from enginewright_cli.preflight.local_pod import LocalPod, PodSettings, read_report
from enginewright_cli.preflight.stages import JOB_SECONDS, Stages
from enginewright_cli.preflight.stopping import Stop

LOCALES: Final = "/usr/lib/locale"
LOCALE_ALIASES: Final = ("en_US.utf8", "en_US")  # of C.UTF-8 in the image
_INSTALLED_LOCALE: Final = "C.utf8"


@contextmanager
def workspace(
    stages: Stages, stop: Stop | None = None, job_seconds: float = JOB_SECONDS
) -> Iterator["PreflightWorkspace"]:
    """Create the folders in TMPDIR, if set, without a fallback, and always remove them. Raises OSError."""
    parent = os.environ.get("TMPDIR") or None
    root = Path(tempfile.mkdtemp(prefix="enginewright-preflight-", dir=parent))
    try:
        yield PreflightWorkspace(root, stages, Stop(stop), job_seconds)
    finally:
        shutil.rmtree(root, ignore_errors=True)


class PreflightWorkspace:
    """The pods of all Jobs of one model."""

    def __init__(self, root: Path, stages: Stages, stop: Stop, job_seconds: float) -> None:
        self._root = root
        self._stop = stop
        self._mounts: dict[str, Path] = {}
        self._store = root / contract.STORE_PATH.lstrip("/")
        answers = root / "answers"
        for folder in (self._store, answers):
            folder.mkdir()
        environment = link_locales(root / LOCALES.lstrip("/"))
        self._settings = PodSettings(
            stages,
            stop,
            job_seconds,
            environment | {contract.SHARED_RESULTS_VARIABLE: str(answers)},
        )

    def mount(self, path: str, folder: Path) -> None:
        """Mount a folder of this machine in every pod, as a claim would be."""
        self._mounts[path] = folder.resolve()

    @contextmanager
    def pod(self, name: str) -> Iterator[LocalPod]:
        """Create the pod of one Job, and remove it afterwards; its reports stay in the store."""
        root = self._root / name
        try:
            pod = LocalPod(root, self._settings)
            for path, folder in (self._mounts | {contract.STORE_PATH: self._store}).items():
                pod.mount(path, folder)
            yield pod
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def abandon(self) -> None:
        """End the running processes of all pods."""
        self._stop.set()

    def manifest(self, kind: str, key: str) -> Manifest:
        """Return the manifest of an artefact; `kind` is `prepared` or `engines`."""
        path = self.artifact(kind, key) / MANIFEST_NAME
        return Manifest.model_validate_json(path.read_bytes())

    def artifact(self, kind: str, key: str) -> Path:
        """Return the folder of an artefact."""
        return self._store / kind / key

    def list_fetched(self) -> tuple[str, ...]:
        """Return the files that stage `fetch` has written, the .onnx file first; (): none."""
        reports = self._store / "reports"
        stored = (read_report(path) for path in reports.glob("prepare-*/fetch.json"))
        facts = next((report.facts for report in stored if report and report.ok), None)
        return tuple(file.path for file in FetchFacts.model_validate(facts).files) if facts else ()


def link_locales(folder: Path) -> dict[str, str]:
    """Create the image's locales in `folder`; return glibc's variables, or {} if C.UTF-8 is not installed."""
    source = Path(LOCALES, _INSTALLED_LOCALE)
    if not source.is_dir():
        return {}
    folder.mkdir(parents=True)
    for name in (_INSTALLED_LOCALE, *LOCALE_ALIASES):
        (folder / name).symlink_to(source)
    return {"LOCPATH": str(folder)}
