"""Proofs belong to bytes: what another pipeline left under a key is not credited, and is replaced unless it is equal."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from enginewright_contract.manifest import ArtifactFile, Manifest, NodeCost, OutputParity
from enginewright_contract.processors import Processor
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.digests import Copied
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.store import Store, credit
from enginewright_runtime.store.artifacts import Artifact
from enginewright_runtime.store.volume import VolumeMedium
from typing_extensions import override

from tests.support.optional import present
from tests.support.store_process import FILES, manifest
from tests.unit.test_store_volume import KEY, content

ONE, TWO = "1" * 64, "2" * 64
ASIDE = "a" * 64


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    return tmp_path / "store"


def publish(
    root: Path, folder: Path, pipeline: str | None, text: bytes = b"content", **facts: Any
) -> bool:
    """Publish what a pipeline has made; return whether the store's artefact stayed."""
    folder = content(folder, text)
    files = {name: folder / Path(name).name for name in FILES}

    def describe(listed: tuple[ArtifactFile, ...]) -> Manifest:
        return manifest(KEY, listed).model_copy(update=facts)

    return credit.publish(Store(root), KEY, files, describe, pipeline)[1]


def is_credited(root: Path, pipeline: str) -> bool:
    store = Store(root)
    return credit.is_credited(store, present(store.find(KEY)), pipeline)


def read(root: Path, target: Path) -> set[bytes]:
    """Return how the files of the artefact in the store begin."""
    Store(root).read(KEY, target)
    return {(target / name).read_bytes()[:1] for name in FILES}


# fault: Store | what one release left under a key, or an import, passes for what another release has proved | records
#   name the exact artefact; what has just been proved replaces other files | after the last stage
def test_what_another_pipeline_left_is_replaced_by_what_is_proved(
    root: Path, tmp_path: Path
) -> None:
    publish(root, tmp_path / "a", ONE, b"old")
    assert is_credited(root, ONE)
    assert not is_credited(root, TWO)
    assert publish(root, tmp_path / "b", TWO, b"new") is False
    assert read(root, tmp_path / "artifact") == {b"n"}
    assert is_credited(root, TWO)
    assert not is_credited(root, ONE), "its proof is of other bytes"
    assert not list((root / "tmp").iterdir())


def test_what_nobody_is_credited_with_is_replaced_too(root: Path, tmp_path: Path) -> None:
    """As an import, or what was published before there were records."""
    publish(root, tmp_path / "a", None, b"old")
    assert publish(root, tmp_path / "b", ONE, b"new") is False
    assert read(root, tmp_path / "artifact") == {b"n"}


def test_equal_files_stay_and_credit_both_pipelines(root: Path, tmp_path: Path) -> None:
    publish(root, tmp_path / "a", ONE)
    assert publish(root, tmp_path / "b", TWO) is True
    assert is_credited(root, ONE)
    assert is_credited(root, TWO)


def test_another_job_of_the_same_pipeline_keeps_the_first_artefact(
    root: Path, tmp_path: Path
) -> None:
    """Files may differ from run to run: random outputs, or engines."""
    publish(root, tmp_path / "a", ONE, b"first")
    assert publish(root, tmp_path / "b", ONE, b"second") is True
    assert read(root, tmp_path / "artifact") == {b"f"}


def test_what_must_stay_stays_and_what_differs_is_stored_aside(root: Path, tmp_path: Path) -> None:
    publish(root, tmp_path / "a", ONE, b"old")
    aside = credit.Aside(ASIDE, partial(manifest, ASIDE))
    folder = content(tmp_path / "b", b"new")
    files = {name: folder / Path(name).name for name in FILES}

    def publish_new() -> tuple[Manifest, bool]:
        describe = partial(manifest, KEY)
        return credit.publish(Store(root), KEY, files, describe, TWO, lambda: aside)

    made, cached = publish_new()
    assert (made.key, cached) == (ASIDE, False)
    assert read(root, tmp_path / "artifact") == {b"o"}
    assert is_credited(root, ONE)
    assert not is_credited(root, TWO)
    assert credit.is_credited(Store(root), made, TWO)
    again, cached = publish_new()
    assert (again.key, cached) == (ASIDE, True)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({}, {"graph_optimization": "BASIC"}),
        ({"graph_optimization": "BASIC"}, {}),
        ({}, {"precision": "INT8"}),
        ({"golden_source": "generated"}, {"golden_source": "samples"}),
    ],
)
def test_another_verdict_on_equal_files_replaces_the_manifest(
    earlier: dict[str, Any], later: dict[str, Any], root: Path, tmp_path: Path
) -> None:
    publish(root, tmp_path / "a", ONE, **earlier)
    assert publish(root, tmp_path / "b", TWO, **later) is False
    kept = present(Store(root).find(KEY)).model_dump()
    assert {name: kept[name] for name in earlier | later} == dict.fromkeys(earlier) | later


@pytest.mark.parametrize(
    "facts",
    [
        {"versions": {"enginewright": "9"}},
        {"node_costs": (NodeCost(label="a (Relu)", count=1, share=0.5),)},
        {"parity": (OutputParity(name="y", compared_with="source", max_abs_error=1e-6),)},
        {"processor": Processor(architecture="x86_64", features=())},
        {"saturable": True},
    ],
    ids=str,
)
def test_measurements_and_facts_that_were_not_recorded_contradict_nothing(
    facts: dict[str, Any], root: Path, tmp_path: Path
) -> None:
    publish(root, tmp_path / "a", ONE)
    assert publish(root, tmp_path / "b", TWO, **facts) is True


class Moving(VolumeMedium):
    """A volume on which something happens before a file is read for the first time."""

    def __init__(self, root: Path, happens: Callable[[], object]) -> None:
        super().__init__(root)
        self._happens: list[Callable[[], object]] = [happens]

    @override
    def copy(
        self,
        artifact: Artifact,
        file: ArtifactFile,
        writer: BinaryIO | None,
        on_chunk: Callable[[int], None] | None = None,
    ) -> Copied | None:
        if self._happens and file.path == FILES[1]:
            self._happens.pop()()
        return super().copy(artifact, file, writer, on_chunk)


def test_a_reader_whose_artefact_is_replaced_ends_with_the_new_one(
    root: Path, tmp_path: Path
) -> None:
    publish(root, tmp_path / "a", ONE, b"old")
    medium = Moving(root, lambda: publish(root, tmp_path / "b", TWO, b"new"))
    copied = Store(medium).read(KEY, tmp_path / "artifact")
    assert copied == Store(root).find(KEY)
    assert {(tmp_path / "artifact" / name).read_bytes()[:1] for name in FILES} == {b"n"}


def test_an_artefact_that_is_replaced_while_it_is_verified_is_intact(
    root: Path, tmp_path: Path
) -> None:
    publish(root, tmp_path / "a", ONE, b"old")
    medium = Moving(root, lambda: publish(root, tmp_path / "b", TWO, b"new"))
    assert Store(medium).find_intact(KEY) == Store(root).find(KEY)


def test_a_reader_whose_artefact_is_damaged_meanwhile_does_not_read_again(
    root: Path, tmp_path: Path
) -> None:
    publish(root, tmp_path / "a", ONE)
    medium = Moving(root, lambda: (root / "prepared" / KEY / FILES[1]).write_bytes(b"x"))
    with pytest.raises(StageFailure) as caught:
        Store(medium).read(KEY, tmp_path / "artifact")
    assert caught.value.reason is Reason.ARTIFACT_CORRUPT


def test_a_record_of_an_artefact_does_not_count_for_a_changed_manifest(
    root: Path, tmp_path: Path
) -> None:
    publish(root, tmp_path / "a", ONE)
    path = root / "prepared" / KEY / "manifest.json"
    path.write_text(path.read_text().replace('"generated"', '"samples"'))
    assert not is_credited(root, ONE)
