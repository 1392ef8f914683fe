"""The store in buckets of real servers: whole or not there, one winner, nothing unchecked is read."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from enginewright_contract.manifest import ArtifactFile, Manifest
from enginewright_contract.reasons import ExitCode, Reason, exit_code
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.store import ENGINE, PREPARED, bucket
from enginewright_runtime.store.bucket import BucketMedium

from tests.support import broken_models as broken
from tests.support.optional import present
from tests.support.preparing import Workplace
from tests.support.source_cutter import Cutter
from tests.support.source_identities import FEDERATED_TOKEN, Identities
from tests.support.source_servers import REGION, GoServers, SourceServers
from tests.support.source_web import Answer, ScriptedServer, Seen
from tests.support.store_places import MANIFEST, AgingPlace, Place, of_gateway
from tests.support.store_process import FILES, manifest, never_keep, publish
from tests.unit.test_store_volume import ENGINE_KEY, KEY, as_engine, content

pytestmark = [
    pytest.mark.timeout(900),  # the servers may have to be built first
    pytest.mark.usefixtures("nowhere"),
]
DEADLINE_SECONDS = 60.0
OTHER_KEY = "ef" * 32
LARGE = np.random.default_rng(3).bytes(40 << 20)  # stored in three parts
LARGE_FILE = FILES[1]


@pytest.fixture
def place(servers: SourceServers, tmp_path: Path) -> Place:
    servers.put_s3("store", {})
    return Place(f"s3://store/{tmp_path.name}", servers.s3())


# no server for one machine takes what Google's client writes
@pytest.fixture(params=["s3", "az"])
def any_place(request: pytest.FixtureRequest, servers: SourceServers, tmp_path: Path) -> Place:
    if request.param == "s3":
        servers.put_s3("store", {})
        return Place(f"s3://store/{tmp_path.name}", servers.s3())
    if "azure" not in servers.addresses:
        pytest.skip("azurite needs node and npm: Azure is not tested on a server here")
    servers.put_azure("store", {})
    return Place(f"az://store/{tmp_path.name}", servers.azure())


def large(folder: Path) -> Path:
    content(folder)
    (folder / Path(LARGE_FILE).name).write_bytes(LARGE)
    return folder


def texts(folder: Path) -> set[bytes]:
    return {(folder / name).read_bytes()[:1] for name in FILES}


def test_a_published_artefact_is_read(any_place: Place, tmp_path: Path) -> None:
    store = any_place.store()
    assert publish(store, KEY, content(tmp_path / "a")) is False
    assert publish(store, KEY, content(tmp_path / "b", b"other")) is True
    artifact = store.read(KEY, tmp_path / "artifact")
    assert [file.path for file in artifact.files] == list(FILES)
    for name in FILES:
        assert (tmp_path / "artifact" / name).read_bytes() == b"content" + Path(name).name.encode()
    kept = (tmp_path / "artifact/manifest.json").read_text()
    assert Manifest.model_validate_json(kept) == artifact == store.find_intact(KEY)
    assert any_place.list_keys() == [KEY]
    golden = store.read_golden(KEY, tmp_path / "golden")
    assert not (tmp_path / "golden" / golden.model).exists()
    assert (tmp_path / "golden" / golden.golden_outputs).exists()


def test_a_damaged_artefact_is_replaced(any_place: Place, tmp_path: Path) -> None:
    store = any_place.store()
    publish(store, KEY, content(tmp_path / "a"))
    any_place.put(any_place.file(FILES[0]), b"damaged")
    assert publish(store, KEY, content(tmp_path / "b")) is True, "with the same files, it is whole"
    store.read(KEY, tmp_path / "artifact")
    any_place.put(any_place.file(FILES[0]), b"damaged")
    assert publish(store, KEY, content(tmp_path / "other", b"other")) is False
    assert texts(tmp_path / "artifact") == {b"c"}
    store.read(KEY, tmp_path / "artifact")
    assert texts(tmp_path / "artifact") == {b"o"}
    any_place.put(MANIFEST, b"{")
    assert publish(store, KEY, content(tmp_path / "c")) is False
    store.read(KEY, tmp_path / "artifact")


def test_reports_and_caches(any_place: Place) -> None:
    store = any_place.store()
    store.put_report("job-1", "fetch", "1")
    store.put_report("job-1", "fetch", "2")
    assert any_place.objects()["reports/job-1/fetch.json"] == b"2"
    assert store.get_cache("timings") is None
    store.put_cache("timings", b"12")
    assert store.get_cache("timings") == b"12"
    any_place.put("caches/timings", any_place.objects()["caches/timings"] + b"3")
    assert store.get_cache("timings") is None, "it is damaged"


def test_a_used_artefact_is_not_removed(
    any_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "_RENEWED_AFTER", timedelta(0))
    store = any_place.store()
    publish(store, KEY, content(tmp_path / "a"))
    medium = BucketMedium(any_place.uri, Secret(any_place.secret))
    (stored,) = medium.list_stored([PREPARED, ENGINE])
    assert sum(stored.files.values()) == sum(map(len, any_place.objects().values()))
    earlier = replace(stored, used=stored.used - timedelta(hours=2))
    assert medium.discard([earlier]) == []
    before = any_place.objects()[MANIFEST]
    artifact = present(store.find_intact(KEY))
    assert any_place.objects()[MANIFEST] != before, "it is another version now"
    assert store.find(KEY) == artifact
    (stored,) = medium.list_stored([PREPARED, ENGINE])
    assert medium.discard([stored]) == [stored]
    assert any_place.list_keys() == []
    assert store.find_intact(KEY) is None
    assert medium.discard([stored]) == []
    assert publish(store, KEY, content(tmp_path / "b", b"other")) is False
    store.read(KEY, tmp_path / "artifact")
    assert texts(tmp_path / "artifact") == {b"o"}


def test_engines_are_kept_apart_and_share_files(place: Place, tmp_path: Path) -> None:
    publish(place.store(), ENGINE_KEY, content(tmp_path / "a"))
    store = place.store(ENGINE)
    assert store.find(ENGINE_KEY) is None

    def describe(listed: tuple[ArtifactFile, ...]) -> Manifest:
        return as_engine(manifest(ENGINE_KEY, listed))

    assert publish(store, ENGINE_KEY, tmp_path / "a", describe) is False
    made = store.read(ENGINE_KEY, tmp_path / "artifact")
    assert made == store.find(ENGINE_KEY)
    stored = sorted(name for name in place.objects() if name.startswith("files/"))
    assert stored == sorted({f"files/{file.sha256}" for file in made.files})

    name = f"engines/{ENGINE_KEY}/manifest.json"
    lying = json.loads(place.objects()[name])
    lying["engine"]["prepared_key"] = "ef" * 32
    place.put(name, json.dumps(lying).encode())
    with pytest.raises(StageFailure, match="is not that of its recipe") as caught:
        store.read(ENGINE_KEY, tmp_path / "artifact")
    assert caught.value.reason is Reason.ENGINE_CORRUPT
    assert publish(store, ENGINE_KEY, tmp_path / "a", describe) is False
    assert store.read(ENGINE_KEY, tmp_path / "artifact") == made

    place.put(f"files/{made.files[1].sha256}", b"damaged")
    with pytest.raises(StageFailure, match=f"engine {ENGINE_KEY[:12]} is damaged: file") as caught:
        store.read(ENGINE_KEY, tmp_path / "artifact")
    assert caught.value.reason is Reason.ENGINE_CORRUPT


# Damage


Damage = Callable[[Place], object]
LAST = FILES[2]


def change_stored(change: Callable[[bytes], bytes | None], name: str = LAST) -> Damage:
    """Return what changes one file."""

    def damage(place: Place) -> None:
        stored = MANIFEST if name == MANIFEST else place.file(name)
        place.put(stored, change(place.objects()[stored]))

    return damage


def swap(place: Place) -> None:
    """Exchange two files of one size."""
    names = [place.file(name) for name in FILES[1:3]]
    stored = place.objects()
    for name, other in zip(names, reversed(names), strict=True):
        place.put(name, stored[other])


def lie(**changes: object) -> Damage:
    """Return what changes the manifest."""
    return change_stored(lambda text: json.dumps(json.loads(text) | changes).encode(), MANIFEST)


def listing(change: Callable[[list[dict[str, Any]]], object]) -> Damage:
    """Return what changes the files that the manifest lists."""

    def damage(place: Place) -> None:
        files = [file.model_dump() for file in place.manifest().files]
        change(files)
        lie(files=files)(place)

    return damage


def name_an_object_outside(place: Place) -> None:
    place.put("secret", b"x")
    outside = {"path": "a", "sha256": "../secret", "size_bytes": 1}
    listing(lambda files: files.append(outside))(place)


DAMAGE: dict[str, tuple[Damage, str]] = {
    "a bit": (
        change_stored(lambda all_: all_[:-1] + bytes([all_[-1] ^ 1])),
        f"file {LAST} has sha256",
    ),
    "cut": (change_stored(lambda all_: all_[:5]), f"file {LAST} has 5 bytes instead of"),
    "removed": (change_stored(lambda _: None), f"file {LAST} is missing"),
    "swapped": (swap, f"file {FILES[1]} has"),
    "another digest": (
        listing(lambda files: files[2].update(sha256="0" * 64)),
        f"file {LAST} is missing",
    ),
    "another file's digest": (
        listing(lambda files: files[2].update(sha256=files[0]["sha256"])),
        f"file {LAST} has",
    ),
    "an object outside": (name_an_object_outside, r"manifest\.json lists no sha256 of a"),
    "a path outside": (
        listing(lambda files: files.append(files[0] | {"path": "../escape"})),
        "which is not inside the artefact",
    ),
    "a file in a file": (
        listing(lambda files: files.append(files[0] | {"path": f"{FILES[0]}/x"})),
        f"lists {FILES[0]}/x inside of another file",
    ),
}


# fault: Store | a file or a manifest is corrupted, truncated, swapped or removed, or names what is not its own |
#   digests, before anything is loaded; the artefact is made again | when it is read
@pytest.mark.parametrize(("damage", "reported"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_artefact_is_refused_and_published_again(
    damage: Damage, reported: str, place: Place, tmp_path: Path
) -> None:
    store = place.store()
    publish(store, KEY, content(tmp_path / "a"))
    damage(place)
    with pytest.raises(StageFailure, match=reported) as caught:
        store.read(KEY, tmp_path / "artifact")
    assert caught.value.reason is Reason.ARTIFACT_CORRUPT
    assert not (tmp_path / "artifact/manifest.json").exists(), "no manifest: no artefact"
    assert not (tmp_path / "artifact" / FILES[2]).exists()
    assert not (tmp_path / "escape").exists()
    assert store.find_intact(KEY) is None
    publish(store, KEY, content(tmp_path / "b"))
    assert store.read(KEY, tmp_path / "artifact") == store.find_intact(KEY)


# Several publishers


def give(place: Place, root: Path) -> dict[str, str]:
    """Mount a store's Secret below `root`; return the variables of a container."""
    (root / "store-credentials").mkdir(exist_ok=True)
    for key, value in place.secret.items():
        (root / "store-credentials" / key).write_text(value)
    return {"ENGINEWRIGHT_ROOT": str(root), "ENGINEWRIGHT_STORE": place.uri}


def start(place: Place, folder: Path, root: Path) -> "subprocess.Popen[str]":
    """Publish a folder in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.store_process", KEY, str(folder)],
        env=os.environ | give(place, root),
        stdout=subprocess.PIPE,
        text=True,
    )


def publish_together(place: Place, folders: list[Path]) -> list[bool]:
    """Publish all folders; each waits with its manifest until all have stored their files."""
    together = threading.Barrier(len(folders), timeout=DEADLINE_SECONDS)

    def describe(listed: tuple[ArtifactFile, ...]) -> Manifest:
        together.wait()
        return manifest(KEY, listed)

    with ThreadPoolExecutor(len(folders)) as threads:
        return list(
            threads.map(lambda folder: publish(place.store(), KEY, folder, describe), folders)
        )


# fault: Store | several Jobs publish artefacts of one key at once | one manifest is put, on condition that there is
#   none; the others use it | prevented
@pytest.mark.parametrize("damaged", [False, True])
def test_of_several_publishers_one_wins(any_place: Place, damaged: bool, tmp_path: Path) -> None:
    if damaged:
        publish(any_place.store(), KEY, content(tmp_path / "before"))
        any_place.put(any_place.file(FILES[0]), b"damaged")
    folders = [content(tmp_path / f"p{i}", b"%d" % i) for i in range(4)]
    cached = publish_together(any_place, folders)
    assert sorted(cached) == [False, True, True, True]
    any_place.store().read(KEY, tmp_path / "artifact")
    assert texts(tmp_path / "artifact") == {b"%d" % cached.index(False)}


# fault: Store | Jobs of several releases replace an artefact at once
def test_of_several_that_replace_an_artefact_the_last_one_is_there_whole(
    any_place: Place, tmp_path: Path
) -> None:
    publish(any_place.store(), KEY, content(tmp_path / "old", b"old"))
    began = present(any_place.store().find(KEY))
    folders = [content(tmp_path / f"p{i}", b"%d" % i) for i in range(3)]
    with ThreadPoolExecutor(len(folders)) as threads:
        cached = threads.map(
            lambda folder: publish(any_place.store(), KEY, folder, keeps=never_keep), folders
        )
        assert [*cached] == [False] * len(folders)
    any_place.store().read(KEY, tmp_path / "artifact")
    assert len(texts(tmp_path / "artifact")) == 1
    assert texts(tmp_path / "artifact") != {b"o"}
    any_place.store().verify(began)  # for readers that began with it


def test_files_that_were_stored_before_are_not_stored_again(place: Place, tmp_path: Path) -> None:
    folder = large(tmp_path / "a")
    interrupt_publication(place, folder)
    assert place.store().find(KEY) is None
    with Cutter(place.secret["AWS_ENDPOINT_URL"]) as cutter:
        assert publish(place.store(AWS_ENDPOINT_URL=cutter.url), KEY, folder) is False
    assert [request for request in cutter.requests if not request.startswith(("GET", "HEAD"))] == [
        f"PUT /store/{tmp_path.name}/{MANIFEST}"
    ]


# The store ends


def restart(gateway: GoServers, cutter: Cutter) -> None:
    gateway.start()
    cutter.redirect(gateway.addresses["s3"])


# fault: Store | the server of a bucket ends while an artefact is published | the Job is repeated; files that are
#   stored already are kept | at once: no manifest is there yet
@pytest.mark.parametrize("killed_at", ["partNumber=2", "manifest.json"])
def test_a_gateway_killed_while_an_artefact_is_published(
    killed_at: str, gateway: GoServers, tmp_path: Path
) -> None:
    killed = threading.Event()

    def kill(request: str) -> None:
        if request.startswith("PUT") and killed_at in request and not killed.is_set():
            killed.set()
            gateway.kill()

    with Cutter(gateway.addresses["s3"], on_request=kill) as cutter:
        place = of_gateway(gateway, cutter.url)
        folder = large(tmp_path / "a")
        with pytest.raises(StageFailure, match="the store is unavailable: cannot write") as caught:
            publish(place.store(), KEY, folder)
        assert killed.is_set()
        assert exit_code(caught.value.reason) is ExitCode.TRANSIENT
        restart(gateway, cutter)
        assert place.store().find(KEY) is None, "nothing is published"
        assert publish(place.store(), KEY, folder) is False
        place.store().read(KEY, tmp_path / "artifact")
        assert (tmp_path / "artifact" / LARGE_FILE).read_bytes() == LARGE


# fault: Store | the server of a bucket ends while an artefact is published
def test_a_gateway_that_comes_back_while_an_artefact_is_published(
    gateway: GoServers, tmp_path: Path
) -> None:
    replaced = threading.Event()
    cutter: Cutter

    def replace_it(request: str) -> None:
        if "partNumber=3" in request and not replaced.is_set():
            replaced.set()
            gateway.kill()
            for folder in (gateway.folder / "s3/store").glob(".sgwtmp"):  # a server forgets parts
                shutil.rmtree(folder)
            restart(gateway, cutter)

    with Cutter(gateway.addresses["s3"], on_request=replace_it) as cutter:
        place = of_gateway(gateway, cutter.url)
        assert publish(place.store(), KEY, large(tmp_path / "a")) is False
        assert replaced.is_set()
        place.store().read(KEY, tmp_path / "artifact")
    assert (tmp_path / "artifact" / LARGE_FILE).read_bytes() == LARGE


# fault: Store | a Job is killed while it publishes | its files have no manifest; the next Job goes on with them | at
#   once: no manifest is there yet
def test_a_publisher_killed_halfway_leaves_no_artefact(gateway: GoServers, tmp_path: Path) -> None:
    reached, killed = threading.Event(), threading.Event()

    def parts(request: str) -> None:
        if "partNumber=3" in request:
            reached.set()
            killed.wait(DEADLINE_SECONDS)

    with Cutter(gateway.addresses["s3"], on_request=parts) as cutter:
        place = of_gateway(gateway, cutter.url)
        process = start(place, large(tmp_path / "a"), tmp_path)
        assert reached.wait(DEADLINE_SECONDS)
        process.kill()
        process.communicate(timeout=DEADLINE_SECONDS)
        killed.set()
    place = of_gateway(gateway, gateway.addresses["s3"])
    assert place.store().find(KEY) is None
    assert publish(place.store(), KEY, tmp_path / "a") is False
    place.store().read(KEY, tmp_path / "artifact")
    assert (tmp_path / "artifact" / LARGE_FILE).read_bytes() == LARGE


# fault: Store | the server of a bucket ends while an artefact is fetched | the pod's stage is repeated, without a
#   manifest until all is there; if it comes back soon, the transfer goes on | at once
def test_a_gateway_killed_while_an_artefact_is_fetched(gateway: GoServers, tmp_path: Path) -> None:
    publish(of_gateway(gateway, gateway.addresses["s3"]).store(), KEY, large(tmp_path / "a"))
    with Cutter(gateway.addresses["s3"], 4 << 20, 1, gateway.kill) as cutter:
        place = of_gateway(gateway, cutter.url)
        with pytest.raises(StageFailure, match="the store is unavailable: cannot read") as caught:
            place.store().read(KEY, tmp_path / "artifact")
        assert cutter.cuts == 1
        assert exit_code(caught.value.reason) is ExitCode.TRANSIENT
        assert not (tmp_path / "artifact/manifest.json").exists(), "no manifest: no artefact"
        assert not (tmp_path / "artifact" / LARGE_FILE).exists()
        restart(gateway, cutter)
        place.store().read(KEY, tmp_path / "artifact")
        assert (tmp_path / "artifact" / LARGE_FILE).read_bytes() == LARGE


# fault: Store | the server of a bucket ends while an artefact is fetched
def test_a_gateway_that_comes_back_while_an_artefact_is_fetched(
    gateway: GoServers, tmp_path: Path
) -> None:
    publish(of_gateway(gateway, gateway.addresses["s3"]).store(), KEY, large(tmp_path / "a"))
    cutter: Cutter

    def replace_it() -> None:
        gateway.kill()
        restart(gateway, cutter)

    with Cutter(gateway.addresses["s3"], 4 << 20, 1, replace_it) as cutter:
        of_gateway(gateway, cutter.url).store().read(KEY, tmp_path / "artifact")
        assert cutter.cuts == 1
    assert (tmp_path / "artifact" / LARGE_FILE).read_bytes() == LARGE


# fault: Store | another pod has the address of a bucket's server for a while | its answer is no object store's; the
#   transfer is tried again, then the Job | at once
def test_another_server_at_the_address_while_an_artefact_is_fetched(
    gateway: GoServers, tmp_path: Path
) -> None:
    publish(of_gateway(gateway, gateway.addresses["s3"]).store(), KEY, large(tmp_path / "a"))
    cutter: Cutter

    with ScriptedServer(lambda _: (200, {}, b"<html>welcome</html>")) as other:

        def take_its_address() -> None:
            gateway.kill()
            cutter.redirect(other.url)

        with Cutter(gateway.addresses["s3"], 4 << 20, 1, take_its_address) as cutter:
            place = of_gateway(gateway, cutter.url)
            with pytest.raises(StageFailure, match=r"is not an object store: .*tries\)") as caught:
                place.store().read(KEY, tmp_path / "artifact")
            assert exit_code(caught.value.reason) is ExitCode.TRANSIENT
            assert "credentials" not in str(caught.value)
            restart(gateway, cutter)
            place.store().read(KEY, tmp_path / "artifact")
            assert (tmp_path / "artifact" / LARGE_FILE).read_bytes() == LARGE


# fault: Store | a file is replaced while it is read | its validator; it is read again | the next part
def test_a_file_that_is_replaced_while_it_is_read(place: Place, tmp_path: Path) -> None:
    """Its damaged beginning is not kept with the end of what replaced it."""
    publish(place.store(), KEY, large(tmp_path / "a"))
    name = place.file(LARGE_FILE)
    place.put(name, b"\0" + LARGE[1:])
    cutter = Cutter(place.secret["AWS_ENDPOINT_URL"], 4 << 20, 1, lambda: place.put(name, LARGE))
    with cutter:
        place.store(AWS_ENDPOINT_URL=cutter.url).read(KEY, tmp_path / "artifact")
    assert (tmp_path / "artifact" / LARGE_FILE).read_bytes() == LARGE


def test_many_artefacts_are_listed_with_few_requests(gateway: GoServers) -> None:
    keys = [f"{number:064x}" for number in range(2100)]
    for key in keys:
        folder = gateway.folder / "s3/store/a/prepared" / key
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_bytes(b"{}")
    with Cutter(gateway.addresses["s3"]) as cutter:
        assert sorted(of_gateway(gateway, cutter.url).list_keys()) == keys
        assert len(cutter.requests) == 3


# What is left over


def interrupt_publication(place: Place, folder: Path) -> None:
    """Store files without a manifest."""

    class EndedError(Exception):
        pass

    def ends(_: tuple[ArtifactFile, ...]) -> Manifest:
        raise EndedError

    with pytest.raises(EndedError):
        publish(place.store(), OTHER_KEY, folder, ends)


def test_old_files_without_a_manifest_are_left_over(aging: AgingPlace, tmp_path: Path) -> None:
    publish(aging.store(), KEY, content(tmp_path / "a"))
    artefact = aging.objects().keys()
    interrupt_publication(aging, content(tmp_path / "b", b"other"))
    everything = aging.objects().keys()
    aging.grow_old(13)
    assert aging.leftovers() == []
    aging.grow_old(2)
    left = aging.leftovers()
    assert {leftover.name for leftover in left} == everything - artefact
    inventory = aging.inventory()
    assert all(inventory.remove(leftover) for leftover in left)
    assert aging.objects().keys() == artefact
    aging.store().read(KEY, tmp_path / "artifact")


def test_nothing_is_left_over_while_a_manifest_is_damaged(
    aging: AgingPlace, tmp_path: Path
) -> None:
    """It may be one of a newer version, whose files it names otherwise."""
    publish(aging.store(), KEY, content(tmp_path / "a"))
    aging.put(MANIFEST, b"{")
    aging.grow_old(20)
    with pytest.raises(StageFailure, match="is damaged"):
        aging.leftovers()


def test_files_of_others_are_never_left_over(aging: AgingPlace, tmp_path: Path) -> None:
    publish(aging.store(), KEY, content(tmp_path / "a"))
    for name in ("report.pdf", f"sub/{'0' * 64}", "0" * 63, "A" * 64):
        aging.put(f"files/{name}", b"another's")
    aging.grow_old(20)
    assert aging.leftovers() == []


def test_files_without_any_manifest_are_not_left_over(aging: AgingPlace, tmp_path: Path) -> None:
    """The address may be a wrong one, or what answers for the bucket may list nothing."""
    interrupt_publication(aging, content(tmp_path / "a"))
    aging.grow_old(13)
    assert aging.leftovers() == [], "they may be of a publication in progress"
    aging.grow_old(2)
    with pytest.raises(
        StageFailure, match=r"s3://store/a has files but no artefact.*PATH/NAMESPACE"
    ) as caught:
        aging.leftovers()
    assert caught.value.reason is Reason.STORE_UNAVAILABLE
    assert len(aging.objects()) == len(FILES)


# fault: Store | leftovers are removed while a publisher relies on them | their age, looked at again; the publisher
#   looks for them after its manifest | prevented
def test_a_leftover_that_a_publisher_stores_anew_stays(aging: AgingPlace, tmp_path: Path) -> None:
    publish(aging.store(), "12" * 32, content(tmp_path / "other", b"other"))
    interrupt_publication(aging, content(tmp_path / "a"))
    aging.grow_old(20)
    left = aging.leftovers()
    assert len(left) == len(FILES)
    assert publish(aging.store(), KEY, tmp_path / "a") is False
    assert not any(aging.inventory().remove(leftover) for leftover in left)
    aging.store().read(KEY, tmp_path / "artifact")


# fault: Store | leftovers are removed while a publisher relies on them
def test_a_file_removed_before_its_manifest_is_there_is_stored_again(
    place: Place, tmp_path: Path
) -> None:
    def describe(listed: tuple[ArtifactFile, ...]) -> Manifest:
        place.put(f"files/{listed[0].sha256}", None)
        return manifest(KEY, listed)

    publish(place.store(), KEY, content(tmp_path / "a"), describe)
    place.store().read(KEY, tmp_path / "artifact")


# What is wrong with a store


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (
            {"AWS_SECRET_ACCESS_KEY": "wr0ng"},
            "the secret access key is wrong; correct the Secret in store.bucket.secretRef",
        ),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "cannot connect to 127.0.0.1:9"),
    ],
)
def test_errors_of_the_bucket_are_reported(
    change: dict[str, str], reported: str, place: Place
) -> None:
    with pytest.raises(StageFailure) as caught:
        place.store(PREPARED, **change).find(KEY)
    assert caught.value.reason is Reason.STORE_UNAVAILABLE
    assert reported in caught.value.message
    assert "wr0ng" not in caught.value.message


def test_a_panic_of_the_client_is_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the client itself takes from the environment is not checked before."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id\nx")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    endpoint = {"AWS_ENDPOINT_URL": place.secret["AWS_ENDPOINT_URL"]}
    with pytest.raises(StageFailure, match="ended on a setting or a credential") as caught:
        Place(place.uri, endpoint).store().find(KEY)
    assert caught.value.reason is Reason.STORE_UNAVAILABLE
    assert "let the pod's own identity read and write it" in caught.value.message
    assert "hunter2" not in capfd.readouterr().err


def test_a_bucket_that_is_not_there(place: Place) -> None:
    other = Place("s3://nobucket/a", place.secret)
    for act in (lambda: other.store().find(KEY), other.list_keys):
        with pytest.raises(StageFailure, match="s3://nobucket/a: there is no such bucket"):
            act()


def test_a_secret_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "credentials").mkdir()
    with pytest.raises(StageFailure, match="the store is unavailable: the Secret") as caught:
        BucketMedium.at("s3://store/a", tmp_path / "credentials")
    assert caught.value.reason is Reason.STORE_UNAVAILABLE


def test_a_role_that_may_not_write(
    place: Place, servers: SourceServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on EKS. The gateway does not know the session token that the role gets."""
    (tmp_path / "token").write_text(FEDERATED_TOKEN)
    with ScriptedServer(certificate=servers.folder / "tls.pem") as server:
        identities = Identities(server)
        server.answer = identities.answer
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/writer")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"{server.url}/sts")
        secret = {
            "AWS_ENDPOINT_URL": servers.addresses["s3"],
            "AWS_REGION": REGION,
            "ca.crt": (servers.folder / "ca.crt").read_text(),
        }
        with pytest.raises(StageFailure, match="the session token is not valid") as caught:
            Place(place.uri, secret).store().put_report("job", "fetch", "{}")
        assert identities.asked == ["POST /sts"]
    assert "let the pod's own identity read and write it" in caught.value.message


@pytest.mark.parametrize(
    ("status", "code", "times"),
    [(501, "NotImplemented", 1000), (409, "ConditionalRequestConflict", 3)],
)
def test_a_store_that_refuses_conditions(
    status: int, code: str, times: int, tmp_path: Path
) -> None:
    """No server of these tests does: some know none, and Amazon's answers conflicts so.

    Without conditions the manifest is put without them, after its files; a conflict passes.
    """
    left = times
    objects: dict[str, bytes] = {}
    puts: list[str] = []

    def answer(seen: Seen) -> Answer:
        nonlocal left
        path = seen.path.partition("?")[0]
        if seen.method == "PUT":
            if left and "If-None-Match" in {name.title() for name in seen.headers}:
                left -= 1
                return status, {}, f"<Error><Code>{code}</Code></Error>".encode()
            objects[path] = seen.body
            puts.append(path)
            return 200, {"ETag": '"1"'}, b""
        if path not in objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        dated = {"ETag": '"1"', "Last-Modified": "Tue, 24 Nov 2026 10:00:00 GMT"}
        whole = objects[path]
        if span := seen.headers.get("range"):
            first, last = map(int, span.removeprefix("bytes=").split("-"))
            part = whole[first : last + 1]
            return 206, {**dated, "Content-Range": f"bytes {first}-{last}/{len(whole)}"}, part
        return 200, dated, whole

    with ScriptedServer(answer) as server:
        secret = {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_ENDPOINT_URL": server.url,
        }
        place = Place("s3://store/a", secret)
        assert publish(place.store(), KEY, content(tmp_path / "a")) is False
        place.store().read(KEY, tmp_path / "artifact")
    assert puts[-1].endswith("/manifest.json")


# The stages


def test_a_model_is_prepared_and_fetched_without_a_volume(place: Place, tmp_path: Path) -> None:
    work = Workplace(tmp_path, environment=give(place, tmp_path))
    (tmp_path / "store").rmdir()
    task = work.task(work.put("m.onnx", broken.relu())).model_copy(update={"pipeline": "1" * 64})
    outcome = work.complete(task)
    published = outcome.published
    key = published.key
    stored = work.stage("fetch", task).report.published
    assert stored == published.model_copy(update={"cached": True})
    fetched = work.fetch_artifact(key)
    assert fetched.code == 0, fetched.message
    assert (tmp_path / "artifact/manifest.json").exists()
    assert "reports/job-1/publish.json" in place.objects()
    assert not (tmp_path / "store").exists()
    (digest,) = {
        item["sha256"]
        for item in json.loads(place.objects()[f"prepared/{key}/manifest.json"])["files"]
        if item["path"] == "model/model.onnx"
    }
    whole = place.objects()[f"files/{digest}"]
    place.put(f"files/{digest}", whole[:-1] + b"\0")
    refused = work.fetch_artifact(key)
    assert refused.report.reason is Reason.ARTIFACT_CORRUPT
    assert not (tmp_path / "artifact/manifest.json").exists(), "nothing is loaded"
    assert work.stage("fetch", task).report.published is None, "it is prepared again"
    place.put(f"files/{digest}", whole)
    again = work.stage("publish", task)
    assert "the store already had" in again.message
