"""Refreshes of unchanged sources: what is asked of the server, and when it is not relied upon."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from enginewright_contract.keys import compute_prepared_keys
from enginewright_contract.report import Published
from enginewright_contract.task import PREPARE_STAGES, PrepareTask, Processing
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.sources.fetching import fetch_all
from enginewright_runtime.sources.objects import ObjectSource
from enginewright_runtime.sources.quota import DiskQuota
from enginewright_runtime.sources.versions import RecordedSource, SourceVersion

from tests.support import broken_models as broken
from tests.support import processing
from tests.support.preparing import Workplace, rename_artifact
from tests.support.source_cutter import Cutter
from tests.support.source_hub import Hub
from tests.support.source_servers import SourceServers
from tests.support.source_web import Answer, ScriptedServer, Seen

pytestmark = [
    pytest.mark.timeout(900),  # the servers may have to be built first
    pytest.mark.usefixtures("nowhere"),
]
RELU = broken.relu().SerializeToString()
OTHER = broken.relu(opset=18).SerializeToString()  # as many bytes
STRONG = {"ETag": '"1"'}
OLD_DATE = {"Last-Modified": "Mon, 06 Jul 2026 10:00:00 GMT"}


def document_model(text: str) -> bytes:
    model = broken.relu()
    model.doc_string = text
    return bytes(model.SerializeToString())


@dataclass(frozen=True)
class Prepared:
    """A prepared model and the store that has it."""

    store: Path
    published: Published


@pytest.fixture(scope="module")
def relu(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    place = Workplace(tmp_path_factory.mktemp("relu"), in_process=True)
    outcome = place.complete(place.task(place.put("relu.onnx", RELU)))
    return Prepared(place.root / "store/prepared", outcome.published)


@pytest.fixture
def place(tmp_path: Path, relu: Prepared) -> Workplace:
    """Return a workplace whose store has the prepared model."""
    place = Workplace(tmp_path, in_process=True)
    shutil.copytree(relu.store, place.root / "store/prepared")
    return place


def refresh(task: PrepareTask, relu: Prepared) -> PrepareTask:
    return task.model_copy(update={"fetched": {"model": relu.published.model_digest}})


def first_fetch(place: Workplace, task: PrepareTask) -> None:
    outcome = place.stage("fetch", task)
    assert outcome.code == 0, outcome.message
    assert outcome.message.startswith("fetched ")


def download_again(place: Workplace, task: PrepareTask) -> bool:
    """Fetch again, and return whether the model is in the work folder."""
    shutil.rmtree(place.root / "work")
    (place.root / "work").mkdir()
    outcome = place.stage("fetch", task)
    assert outcome.code == 0, outcome.message
    return (place.root / "work/model/model.onnx").exists()


@dataclass
class Site:
    """Files of a web server, by path, with the headers of its answers."""

    files: dict[str, bytes]
    headers: dict[str, str]
    of_head: int = 200  # status of answers to HEAD
    moved: dict[str, str] = field(default_factory=dict)  # locations of redirects, by path
    server: ScriptedServer = field(init=False)

    def __post_init__(self) -> None:
        self.server = ScriptedServer(self._answer)

    def _answer(self, seen: Seen) -> Answer:
        if seen.path in self.moved:
            return 302, {"Location": self.moved[seen.path]}, b""
        status = self.of_head if seen.method == "HEAD" else 200
        return status, dict(self.headers), self.files[seen.path]

    @property
    def requests(self) -> list[str]:
        """Return the requests since the last call."""
        seen = [f"{item.method} {item.path}" for item in self.server.seen]
        self.server.seen.clear()
        return seen


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site({"/m.onnx": RELU}, STRONG)
    with site.server:
        yield site


def at(site: Site, place: Workplace) -> PrepareTask:
    return place.task(f"{site.server.url}/m.onnx")


# HTTP


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        (STRONG, 'etag "1"'),
        ({"ETag": 'W/"1"'}, 'etag W/"1"'),
        (OLD_DATE, f"of {OLD_DATE['Last-Modified']}, {len(RELU)} bytes"),
    ],
)
def test_an_unchanged_file_is_looked_at_and_nothing_else_is_done(
    headers: dict[str, str], version: str, site: Site, place: Workplace, relu: Prepared
) -> None:
    site.headers = headers
    task = at(site, place)
    first_fetch(place, task)
    assert site.requests == ["GET /m.onnx"]
    shutil.rmtree(place.root / "work")
    (place.root / "work").mkdir()
    outcomes = [place.stage(name, refresh(task, relu)) for name in PREPARE_STAGES]
    assert site.requests == ["HEAD /m.onnx"]
    assert outcomes[0].message == f"unchanged: {version}, not downloaded"
    assert [outcome.code for outcome in outcomes] == [0] * len(PREPARE_STAGES)
    published = outcomes[-1].report.published
    assert published == relu.published.model_copy(update={"cached": True})


def test_a_refresh_relies_on_nothing_that_its_image_has_not_proved(
    site: Site, place: Workplace, relu: Prepared
) -> None:
    task = at(site, place).model_copy(update={"pipeline": "1" * 64})
    first_fetch(place, task)
    assert download_again(place, refresh(task, relu)), "no image is credited with the artefact"
    for name in PREPARE_STAGES[1:]:
        assert place.stage(name, task).code == 0
    assert not download_again(place, refresh(task, relu))
    other = task.model_copy(update={"pipeline": "2" * 64})
    assert download_again(place, refresh(other, relu))


def serve(content: bytes, **headers: str) -> Callable[[Site, Workplace], None]:
    def change(site: Site, _: Workplace) -> None:
        site.files["/m.onnx"] = content
        site.headers |= headers

    return change


def answer_head(status: int) -> Callable[[Site, Workplace], None]:
    return lambda site, _: setattr(site, "of_head", status)


def lose(folder: str) -> Callable[[Site, Workplace], None]:
    def change(_: Site, place: Workplace) -> None:
        shutil.rmtree(place.root / "store" / folder)
        (place.root / "store").mkdir(exist_ok=True)

    return change


def damage(_: Site, place: Workplace) -> None:
    (model,) = (place.root / "store/prepared").glob("*/model/model.onnx")
    model.write_bytes(model.read_bytes()[:-1])


class Second(NamedTuple):
    """What is different at the second fetch, and what it asks for."""

    asked: str = "HEAD GET"
    change: Callable[[Site, Workplace], None] = lambda *_: None
    headers: Mapping[str, str] = STRONG  # of the first fetch too
    fetched: Mapping[str, str] | None = None  # other digests than the model's
    rtol: float | None = None


SECOND = {
    "other content": Second(change=serve(OTHER, ETag='"2"')),
    # as docs/resource.md says: the pinned content stays
    "other content of one ETag": Second("HEAD", serve(OTHER)),
    "other content of one date and another size": Second(
        change=serve(document_model("longer")), headers=OLD_DATE
    ),
    **{
        f"HEAD answers {status}": Second(change=answer_head(status))
        for status in (401, 403, 404, 405, 500, 501, 503)
    },
    "no version": Second("GET", headers={}),
    "a date that is none": Second("GET", headers={"Last-Modified": "yesterday"}),
    "no pinned digest": Second("GET", fetched={}),
    "another pinned digest": Second("GET", fetched={"model": "f" * 64}),
    "another recipe": Second(rtol=0.5),
    "a damaged artefact": Second(change=damage),
    "no artefacts": Second(change=lose("prepared")),
    "no caches": Second("GET", lose("caches")),
    "an empty store": Second("GET", lose(".")),
}


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
def test_requests_of_a_second_fetch(
    second: Second, site: Site, place: Workplace, relu: Prepared
) -> None:
    site.headers = dict(second.headers)
    task = refresh(at(site, place), relu)
    if second.fetched is not None:
        task = task.model_copy(update={"fetched": second.fetched})
    first_fetch(place, task)
    assert site.requests == ["GET /m.onnx"]
    second.change(site, place)
    recipe = task.recipe.model_copy(update={"rtol": second.rtol})
    again = download_again(place, task.model_copy(update={"recipe": recipe}))
    assert site.requests == [f"{method} /m.onnx" for method in second.asked.split()]
    assert again is ("GET" in second.asked)
    if again:
        assert (place.root / "work/model/model.onnx").read_bytes() == site.files["/m.onnx"]


def test_another_etag_of_the_same_content_is_recorded(
    site: Site, place: Workplace, relu: Prepared
) -> None:
    task = refresh(at(site, place), relu)
    first_fetch(place, task)
    site.headers = {"ETag": '"2"'}
    assert download_again(place, task)
    assert not download_again(place, task)
    assert site.requests == ["GET /m.onnx", "HEAD /m.onnx", "GET /m.onnx", "HEAD /m.onnx"]


def test_a_date_is_compared_with_the_server_s_clock(
    site: Site, place: Workplace, relu: Prepared
) -> None:
    task = refresh(at(site, place), relu)
    site.headers = {**OLD_DATE, "Date": "Mon, 06 Jul 2026 10:00:59 GMT"}
    first_fetch(place, task)
    assert download_again(place, task)
    site.headers = {**OLD_DATE, "Date": "Mon, 06 Jul 2026 10:01:00 GMT"}
    assert download_again(place, task)
    assert not download_again(place, task)


@pytest.mark.parametrize("headers", [STRONG, OLD_DATE])
def test_the_version_of_a_redirect_is_that_of_the_address_it_leads_to(
    headers: dict[str, str], site: Site, place: Workplace, relu: Prepared
) -> None:
    site.headers = headers
    site.files = {"/1/m.onnx?signature=a": RELU, "/1/m.onnx?signature=b": RELU, "/2/m.onnx": OTHER}
    site.moved = {"/m.onnx": "/1/m.onnx?signature=a"}
    task = refresh(at(site, place), relu)
    first_fetch(place, task)
    site.moved = {"/m.onnx": "/1/m.onnx?signature=b"}
    assert not download_again(place, task)
    site.moved = {"/m.onnx": "/2/m.onnx"}
    assert download_again(place, task)
    (record,) = (place.root / "store/caches").iterdir()
    assert b"signature" not in record.read_bytes()


def test_content_that_others_may_see_differently_is_downloaded(
    site: Site, place: Workplace, relu: Prepared
) -> None:
    task = refresh(at(site, place), relu)
    place.give({"token": "first-secret"})
    first_fetch(place, task)
    assert not download_again(place, task)
    place.give({"token": "second-secret"})
    assert download_again(place, task)
    (record,) = (place.root / "store/caches").iterdir()
    assert b"secret" not in record.read_bytes()


def test_another_address_has_no_version(site: Site, place: Workplace, relu: Prepared) -> None:
    site.files["/m.onnx?v=2"] = RELU
    first_fetch(place, at(site, place))
    task = refresh(place.task(f"{site.server.url}/m.onnx?v=2"), relu)
    assert download_again(place, task)
    assert site.requests == ["GET /m.onnx", "GET /m.onnx?v=2"]


def test_external_data_and_samples_are_looked_at_too(tmp_path: Path) -> None:
    place = Workplace(tmp_path, in_process=True)
    samples = tmp_path / "samples.npz"
    np.savez(samples, x=np.ones((1, 4), np.float32))
    files = {
        "/m.onnx": broken.external("w.bin").SerializeToString(),
        "/w.bin": broken.weights(),
        "/s.npz": samples.read_bytes(),
    }
    site = Site(files, STRONG)
    with site.server:
        task = place.task(f"{site.server.url}/m.onnx", samples_uri=f"{site.server.url}/s.npz")
        published = place.complete(task).published
        digests = {"model": published.model_digest, **published.data}
        again = task.model_copy(update={"fetched": digests})
        assert site.requests == ["GET /m.onnx", "GET /w.bin", "GET /s.npz"]
        assert not download_again(place, again)
        assert site.requests == ["HEAD /m.onnx", "HEAD /w.bin", "HEAD /s.npz"]
        samples_alone = again.model_copy(update={"fetched": {**digests, "samples": "0" * 64}})
        assert download_again(place, samples_alone)


def test_steps_are_looked_at_too(tmp_path: Path) -> None:
    place = Workplace(tmp_path, in_process=True)
    model, step = processing.classifier(), processing.labeller()
    files = {"/m.onnx": model.SerializeToString(), "/s.onnx": step.SerializeToString()}
    site = Site(files, STRONG)
    with site.server:
        steps = Processing(after=(f"{site.server.url}/s.onnx",))
        task = place.task(f"{site.server.url}/m.onnx", processing=steps)
        published = place.complete(task).published
        digests = {"model": published.model_digest, **published.data}
        again = task.model_copy(update={"fetched": digests})
        assert site.requests == ["GET /m.onnx", "GET /s.onnx"]
        assert not download_again(place, again)
        assert site.requests == ["HEAD /m.onnx", "HEAD /s.onnx"]
        assert place.complete(again).published == published.model_copy(update={"cached": True})
        # keys of earlier versions contained addresses
        keys = compute_prepared_keys(published.model_digest, task.recipe, published.data)
        assert keys[0] == published.key
        rename_artifact(place.root / "store", *keys)
        assert not download_again(place, again)
        kept = {"cached": True, "key": keys[1]}
        assert place.complete(again).published == published.model_copy(update=kept)
        site.headers = {"ETag": '"2"'}
        assert download_again(place, again)


# other servers


@dataclass(frozen=True)
class ObjectStorage:
    """The server of one scheme."""

    scheme: str
    servers: SourceServers

    @property
    def name(self) -> str:
        return {"s3": "s3", "gs": "gcs", "az": "azure"}[self.scheme]

    def put(self, bucket: str, files: Mapping[str, bytes]) -> None:
        servers = self.servers
        put = {"s3": servers.put_s3, "gs": servers.put_gcs, "az": servers.put_azure}[self.scheme]
        put(bucket, files)

    def secret(self, url: str) -> dict[str, str]:
        """Return a Secret for the server behind a proxy."""
        return {
            "s3": self.servers.s3(AWS_ENDPOINT_URL=url),
            "gs": {"GOOGLE_BASE_URL": url},
            "az": self.servers.azure(AZURE_STORAGE_ENDPOINT=url),
        }[self.scheme]


@pytest.fixture(params=["s3", "gs", "az"])
def store(request: pytest.FixtureRequest, servers: SourceServers) -> ObjectStorage:
    storage = ObjectStorage(request.param, servers)
    if storage.name not in servers.addresses:
        pytest.skip("azurite needs node and npm: Azure is not tested on a server here")
    return storage


def test_an_object(store: ObjectStorage, place: Workplace, relu: Prepared) -> None:
    store.put("refreshed", {"team/m.onnx": RELU})
    with Cutter(store.servers.addresses[store.name]) as proxy:
        place.give(store.secret(proxy.url))
        task = refresh(place.task(f"{store.scheme}://refreshed/team/m.onnx"), relu)
        first_fetch(place, task)
        proxy.requests.clear()
        assert not download_again(place, task)
        assert [request.partition(" ")[0] for request in proxy.requests] == ["HEAD"]
        store.put("refreshed", {"team/m.onnx": OTHER})
        assert download_again(place, task)
    assert (place.root / "work/model/model.onnx").read_bytes() == OTHER


def test_a_folder_of_a_bucket_is_listed(
    store: ObjectStorage, place: Workplace, relu: Prepared
) -> None:
    store.put("beside", {"team/m.onnx": RELU})
    with Cutter(store.servers.addresses[store.name]) as proxy:
        place.give(store.secret(proxy.url))
        task = refresh(place.task(f"{store.scheme}://beside/team"), relu)
        first_fetch(place, task)
        store.put("beside", {"team/README.md": b"#"})
        proxy.requests.clear()
        assert not download_again(place, task)
        assert not [request for request in proxy.requests if "m.onnx" in request]
        store.put("beside", {"team/second.onnx": OTHER})
        outcome = place.stage("fetch", task)
    assert "has 2 .onnx files" in outcome.message


def record_source(servers: SourceServers, uri: str, suffix: str = "") -> RecordedSource:
    return RecordedSource(ObjectSource(uri, Secret(servers.s3())), suffix)


def test_all_files_of_calibration_data_are_compared(servers: SourceServers, tmp_path: Path) -> None:
    servers.put_s3("images", {"set/a.npy": b"1", "set/deep/b.npy": b"2"})
    source = record_source(servers, "s3://images/set")
    (tmp_path / "work").mkdir()
    fetch_all(source, tmp_path / "work", DiskQuota(tmp_path, "calibration data", 1 << 30))
    version = SourceVersion.model_validate_json(source.version.to_json())
    assert version.is_current(record_source(servers, "s3://images/set"), "")
    servers.put_s3("images", {"set/c.npy": b"3"})
    assert not version.is_current(record_source(servers, "s3://images/set"), "")


def test_a_file_that_is_replaced_after_it_was_listed_has_no_version(
    servers: SourceServers, tmp_path: Path
) -> None:
    servers.put_s3("raced", {"team/m.onnx": RELU})
    source = record_source(servers, "s3://raced/team", ".onnx")
    assert source.find() is None
    assert [file.path for file in source.files(deep=False)] == ["m.onnx"]
    servers.put_s3("raced", {"team/m.onnx": OTHER})
    source.copy("m.onnx", tmp_path / "m.onnx", DiskQuota(tmp_path, "a model", 1 << 30))
    assert not source.version.is_usable


def test_a_tag_of_a_registry(servers: SourceServers, place: Workplace, relu: Prepared) -> None:
    digest = servers.push("team/refreshed", "v1", {"m.onnx": RELU})
    with Cutter(servers.addresses["registry"]) as proxy:
        host = proxy.url.removeprefix("http://")
        task = refresh(place.task(f"oci://{host}/team/refreshed:v1"), relu)
        first_fetch(place, task)
        proxy.requests.clear()
        outcome = place.stage("fetch", task)
        assert outcome.message == f"unchanged: manifest {digest}, not downloaded"
        assert proxy.requests == ["HEAD /v2/team/refreshed/manifests/v1"]
        servers.push("team/refreshed", "v1", {"m.onnx": OTHER})
        assert download_again(place, task)
    assert (place.root / "work/model/model.onnx").read_bytes() == OTHER


LARGE = document_model("l" * 2000)


@pytest.mark.parametrize("path", ["", "/m.onnx"])
def test_a_commit_of_the_hub(path: str, tmp_path: Path) -> None:
    """Another commit with the same model is unchanged as well: the hub lists its digest."""
    place = Workplace(tmp_path, in_process=True)
    files = {"m.onnx": LARGE, "README.md": b"#"}
    with Hub(files) as hub:
        place.give(hub.secret)
        task = place.task(f"hf://org/model{path}")
        digest = place.complete(task).published.model_digest
        task = task.model_copy(update={"fetched": {"model": digest}})
        hub.server.seen.clear()
        hub.network.seen.clear()
        assert not download_again(place, task)
        assert [seen.path for seen in hub.server.seen] == ["/api/models/org/model/revision/main"]
        hub.commit = "f" * 40
        hub.files = {**files, "README.md": b"# more"}
        assert not download_again(place, task)
        assert hub.network.seen == []
        hub.files = {**files, "m.onnx": LARGE.replace(b"lll", b"mmm", 1)}
        assert download_again(place, task)
        assert len(hub.network.seen) == 1


def test_a_file_of_a_claim_is_always_read(place: Workplace, relu: Prepared) -> None:
    task = refresh(place.task(place.put("m.onnx", RELU)), relu)
    first_fetch(place, task)
    assert download_again(place, task)
