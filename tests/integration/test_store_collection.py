"""Garbage collection on real volumes and buckets, while Jobs publish and find the same artefacts."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from enginewright_cli.app import app
from enginewright_contract.collection import KEPT_CHARACTERS, LEAST_AGE_SECONDS, CollectTask
from enginewright_contract.reasons import Reason
from enginewright_contract.task import TASK_VARIABLE
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.store import PREPARED, Store
from enginewright_runtime.store.bucket import BucketMedium
from enginewright_runtime.store.clusters import record_use, release
from enginewright_runtime.store.collection import Collection, collect
from enginewright_runtime.store.medium import Stored
from typer.testing import CliRunner

from tests.integration.test_store_bucket import give
from tests.support.programs import run_program
from tests.support.serving import read_report
from tests.support.source_cutter import Cutter
from tests.support.source_web import Answer, ScriptedServer, Seen
from tests.support.store_places import MANIFEST, AgingPlace, Place
from tests.support.store_process import FILES, publish
from tests.unit.test_store_volume import KEY, content

pytestmark = [
    pytest.mark.timeout(900),  # the servers may have to be built first
    pytest.mark.usefixtures("nowhere"),
]
OTHER = "cd" * 32
DAY = 86_400
ROUNDS = 60


@pytest.fixture
def place(aging: AgingPlace) -> AgingPlace:
    return aging


def medium(place: Place) -> BucketMedium:
    return BucketMedium(place.uri, Secret(place.secret))


def gc(place: Place, *keep: str, **fields: object) -> Collection:
    beginnings = [key[:KEPT_CHARACTERS] for key in keep]
    usual = {"job": "c", "keep": beginnings, "as_of": datetime.now(UTC)}
    usual |= {"min_age_seconds": LEAST_AGE_SECONDS}
    return collect(medium(place), CollectTask.model_validate(usual | fields))


def find_stored(place: Place, key: str = KEY) -> Stored:
    (one,) = [
        stored for stored in medium(place).list_stored([PREPARED]) if stored.artifact.key == key
    ]
    return one


# A bucket


def test_an_unneeded_artefact_goes_and_its_files_are_left_over(
    place: AgingPlace, tmp_path: Path
) -> None:
    """Files that another artefact shares stay."""
    publish(place.store(), KEY, content(tmp_path / "a"))
    (tmp_path / "b").mkdir()
    for name in FILES:
        text = (tmp_path / "a" / Path(name).name).read_bytes()
        (tmp_path / "b" / Path(name).name).write_bytes(text if name == FILES[0] else text + b"!")
    publish(place.store(), OTHER, tmp_path / "b")
    files = {name for name in place.objects() if name.startswith("files/")}
    assert len(files) == 2 * len(FILES) - 1, "one is shared"
    place.grow_old(10)
    done = gc(place, OTHER, max_age_seconds=9 * DAY)
    result = done.result(dry_run=False)
    assert (result.artifacts, result.removed_artifacts, result.needed_artifacts) == (2, 1, 1)
    everything = sum(map(len, place.objects().values()))
    assert result.bytes - result.removed_bytes == result.bytes_after == result.needed_bytes
    assert result.bytes_after < everything
    assert place.list_keys() == [OTHER]
    assert place.store().find(KEY) is None
    assert {name for name in place.objects() if name.startswith("files/")} == files
    place.grow_old(5)
    assert gc(place, OTHER).result(dry_run=False).leftovers == len(FILES) - 1
    place.store().read(OTHER, tmp_path / "artifact")


def test_the_last_artefact_goes_with_its_files(place: AgingPlace, tmp_path: Path) -> None:
    """Its mark tells that the address is the right one."""
    publish(place.store(), KEY, content(tmp_path / "a"))
    place.grow_old(20)
    assert gc(place, max_bytes=0).result(dry_run=False).leftovers == len(FILES)
    assert place.objects().keys() == {MANIFEST}
    place.grow_old(20)
    assert gc(place, max_bytes=0).result(dry_run=False).artifacts == 0


def test_a_part_that_namespaces_shared_stays_as_it_is(
    place: AgingPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection in a namespace's own part, into which its artefacts are copied, removes nothing from it."""
    shared, own = (replace(place, uri=f"{place.uri}/{part}") for part in ("_research", "team-a"))
    for number, aging_place in enumerate((shared, own)):
        publish(aging_place.store(), KEY, content(tmp_path / f"{number}"))
    record_use(medium(shared), "one")
    shared.put("reports/team-a.m-prepare-1/publish.json", b"{}")
    place.grow_old(200)
    before = shared.objects()
    for _ in range(2):  # artefacts, then their files
        gc(own, max_age_seconds=DAY, max_bytes=0)
        place.grow_old(200)
    assert own.list_keys() == []
    assert shared.objects() == before

    for name, value in place.secret.items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "exported"
    for command in (("export", shared.uri, KEY, str(folder)), ("import", own.uri, str(folder))):
        done = CliRunner().invoke(app, ["store", *command])
        assert done.exit_code == 0, done.output
    assert own.store().find(KEY) == shared.store().find(KEY)
    assert shared.objects() == before


def test_a_dry_run_removes_nothing(place: AgingPlace, tmp_path: Path) -> None:
    publish(place.store(), KEY, content(tmp_path / "a"))
    place.store().put_report("job", "fetch", "{}")
    place.grow_old(40)
    before = place.objects()
    done = gc(place, max_bytes=0, dry_run=True)
    assert (len(done.removed), len(done.reports)) == (1, 1)
    assert place.objects() == before
    gc(place, max_bytes=0)
    assert "reports/job/fetch.json" not in place.objects()


# fault: Store | two clusters use one PATH of a bucket, and one removes what the other needs | each collection
#   records its cluster before it looks who else did, and each Job that prepares a model before it looks what there is |
#   prevented
def test_clusters_that_share_a_bucket_remove_nothing_of_each_other(
    place: AgingPlace, tmp_path: Path
) -> None:
    publish(place.store(), KEY, content(tmp_path / "a"))
    place.grow_old(10)
    assert len(gc(place, max_bytes=0, cluster="one", dry_run=True).removed) == 1
    shared = "others use this store: cluster one, last on 20"
    with pytest.raises(StageFailure, match=shared) as caught:
        gc(place, max_bytes=0, cluster="two")
    assert caught.value.reason is Reason.STORE_SHARED
    assert "enginewright store release" in caught.value.message
    with pytest.raises(StageFailure, match="cluster two"):
        gc(place, max_bytes=0, cluster="one")
    with pytest.raises(StageFailure, match=r"cluster (one|two), last on .*; cluster"):
        gc(place, max_bytes=0)
    assert place.list_keys() == [KEY]
    assert len(gc(place, max_bytes=0, cluster="two", dry_run=True).removed) == 1
    assert gc(place, cluster="two").removed == (), "leftovers alone endanger no other cluster"

    assert release(medium(place), "one")
    assert not release(medium(place), "one")
    assert len(gc(place, max_bytes=0, cluster="two").removed) == 1
    assert place.list_keys() == []


def test_a_cluster_that_prepares_its_first_model_is_known_to_others(
    place: AgingPlace, tmp_path: Path
) -> None:
    publish(place.store(), KEY, content(tmp_path / "a"))
    place.grow_old(10)
    with Cutter(place.secret["AWS_ENDPOINT_URL"]) as cutter:
        uses = BucketMedium(place.uri, Secret({**place.secret, "AWS_ENDPOINT_URL": cutter.url}))
        record_use(uses, "two")
        assert [request.partition(" ")[0] for request in cutter.requests] == ["GET", "PUT"]
        cutter.requests.clear()
        record_use(uses, "two")
        assert [request.partition(" ")[0] for request in cutter.requests] == ["GET"]
    with pytest.raises(StageFailure, match="cluster two, last on 20"):
        gc(place, max_bytes=0, cluster="one")
    assert place.list_keys() == [KEY]


def test_a_manifest_that_lies_about_sizes_removes_nothing_else(
    place: AgingPlace, tmp_path: Path
) -> None:
    publish(place.store(), OTHER, content(tmp_path / "other", b"other"))
    place.grow_old(1)
    publish(place.store(), KEY, content(tmp_path / "a"))
    files = [file.model_copy(update={"size_bytes": 1 << 50}) for file in place.manifest().files]
    lying = place.manifest().model_copy(update={"files": tuple(files)})
    place.put(MANIFEST, lying.to_json().encode())
    place.grow_old(1)
    assert gc(place, max_bytes=1 << 20).removed == ()


# Use


def requests(place: Place, act: Callable[[Place], object]) -> list[str]:
    """Return the requests for the manifest that an act sends."""
    with Cutter(place.secret["AWS_ENDPOINT_URL"]) as cutter:
        act(Place(place.uri, place.secret | {"AWS_ENDPOINT_URL": cutter.url}))
        return [
            request.split()[0] for request in cutter.requests if request.endswith("manifest.json")
        ]


def test_an_artefact_that_a_job_finds_is_used(place: AgingPlace, tmp_path: Path) -> None:
    publish(place.store(), KEY, content(tmp_path / "a"))

    def find(place: Place) -> None:
        assert place.store().find_intact(KEY) is not None

    assert requests(place, find) == ["HEAD", "GET"], "it was used within an hour"
    place.grow_old(10)
    before, manifest = find_stored(place), place.manifest()
    assert requests(place, find) == ["HEAD", "GET", "PUT", "GET"]
    assert place.manifest() == manifest
    after = find_stored(place)
    assert (after.used - before.used).total_seconds() > 9 * DAY
    assert medium(place).discard([before]) == []
    gc(place, max_bytes=0)
    assert place.store().find_intact(KEY) is not None


# fault: Store | a Job finds an artefact in the moment in which it is removed as garbage
def test_an_artefact_used_before_its_removal_stays(place: AgingPlace, tmp_path: Path) -> None:
    """Although its content is the same, it is another version."""
    publish(place.store(), KEY, content(tmp_path / "a"))
    place.grow_old(10)
    listed = find_stored(place)

    def use(request: str) -> None:
        if request.startswith("PUT") and request.endswith("manifest.json"):
            assert place.store().find_intact(KEY) is not None

    with Cutter(place.secret["AWS_ENDPOINT_URL"], on_request=use) as cutter:
        removing = Place(place.uri, place.secret | {"AWS_ENDPOINT_URL": cutter.url})
        assert medium(removing).discard([listed]) == []
    assert place.store().find_intact(KEY) is not None


def test_an_artefact_removed_before_its_use_is_missing(place: AgingPlace, tmp_path: Path) -> None:
    publish(place.store(), KEY, content(tmp_path / "a"))
    place.grow_old(10)

    def remove(request: str) -> None:
        if request.startswith("PUT") and request.endswith("manifest.json"):
            gc(place, max_bytes=0)

    with Cutter(place.secret["AWS_ENDPOINT_URL"], on_request=remove) as cutter:
        using = Place(place.uri, place.secret | {"AWS_ENDPOINT_URL": cutter.url})
        assert using.store().find_intact(KEY) is None


def test_an_identity_that_may_not_delete_is_told_so() -> None:
    listed = (
        b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a/caches/x</Key><Size>1</Size>"
        b"<LastModified>2020-01-01T00:00:00.000Z</LastModified></Contents></ListBucketResult>"
    )

    def answer(seen: Seen) -> Answer:
        if seen.method == "POST":
            return 403, {}, b"<Error><Code>AccessDenied</Code></Error>"
        dated = {"Last-Modified": "Wed, 01 Jan 2020 00:00:00 GMT", "ETag": '"1"'}
        is_caches = "prefix=a%2Fcaches" in seen.path
        return 200, dated, listed if is_caches else b"<ListBucketResult/>"

    with ScriptedServer(answer) as server:
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        place = Place("s3://store/a", keys | {"AWS_ENDPOINT_URL": server.url})
        with pytest.raises(StageFailure, match="access is denied") as caught:
            gc(place)
    assert "correct the Secret" in caught.value.message
    assert "may delete" in caught.value.message


# Processes


def volume_of(tmp_path: Path) -> tuple[Store, dict[str, str], Callable[[], None]]:
    """Return a store on a volume, the variables of a container, and what ages its artefacts."""
    root = tmp_path / "store"
    root.mkdir()

    def age() -> None:
        for manifest in root.glob("prepared/*/manifest.json"):
            os.utime(manifest, (time.time() - 10 * DAY,) * 2)

    return Store(root), {"ENGINEWRIGHT_ROOT": str(tmp_path)}, age


# fault: Store | Jobs publish and find artefacts while garbage is collected | what a Job has found since the list of
#   what is needed was made stays, or is published again | prevented
def test_a_published_artefact_stays_while_others_collect(tmp_path: Path) -> None:
    store, variables, age = volume_of(tmp_path)
    keys = [f"{number:x}" * 64 for number in range(3)]
    folder = content(tmp_path / "content", b"x" * (2 << 20))  # to be verified for some time
    roles = [("publish", str(folder), *keys)] * 2 + [("collect",)] * 2
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.support.collecting_process", *role],
                    env=os.environ | variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    bufsize=1,
                )
            )
            for role in roles
        ]
        for _ in range(ROUNDS):
            age()
            for process in processes:
                assert process.stdin
                process.stdin.write(f"{datetime.now(UTC).isoformat()}\n")
            answers = [process.stdout.readline().strip() for process in processes if process.stdout]
            assert answers[2:] == ["done", "done"]
            for key in answers[:2]:
                assert key in keys
                assert store.find_intact(key) is not None
        for process in processes:
            assert process.stdin
            process.stdin.close()
        for process in processes:
            assert process.wait(60) == 0


def test_the_stage_reports_its_removals(place: AgingPlace, tmp_path: Path) -> None:
    publish(place.store(), KEY, content(tmp_path / "a"))
    publish(place.store(), OTHER, content(tmp_path / "b", b"other"))
    place.grow_old(10)
    (tmp_path / "dev").mkdir()
    task = CollectTask(
        job="collect-1",
        keep=(OTHER[:KEPT_CHARACTERS],),
        as_of=datetime.now(UTC),
        min_age_seconds=LEAST_AGE_SECONDS,
        max_age_seconds=DAY,
    )
    run_program(
        [sys.executable, "-m", "enginewright_runtime", "stage", "collect"],
        env=os.environ | give(place, tmp_path) | {TASK_VARIABLE: task.to_json()},
        timeout=120,
    )
    report = read_report(tmp_path)
    assert report.collected is not None
    assert (report.collected.artifacts, report.collected.removed_artifacts) == (2, 1)
    assert report.message.startswith("removed 1 of 2 artefacts")
    assert place.list_keys() == [OTHER]
    assert "reports/collect-1/collect.json" in place.objects()
