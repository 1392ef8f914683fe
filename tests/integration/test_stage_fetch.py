"""Sources over real HTTP and real folders: what is brought, what is refused and how it is reported."""

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.prepare.fetch import stage as fetch
from enginewright_runtime.remote.credentials import Secret
from enginewright_runtime.sources import open_source
from enginewright_runtime.sources import web as web_source
from enginewright_runtime.sources.http import HttpSource
from enginewright_runtime.sources.quota import DiskQuota

from tests.support import broken_models as broken
from tests.support.optional import present
from tests.support.ports import free_port
from tests.support.preparing import Workplace
from tests.support.source_servers import SourceServers
from tests.support.source_web import ScriptedServer
from tests.support.web import Answer, Request, WebServer, cut_off, serve

pytestmark = pytest.mark.usefixtures("hasty")
RELU = broken.relu().SerializeToString()


@pytest.fixture
def command(tmp_path: Path) -> Workplace:
    """Run stages as processes, whose logs are seen."""
    return Workplace(tmp_path)


def download(web: WebServer, target: Path, path: str = "/m.onnx") -> str:
    source = HttpSource(web.url + path, Secret())
    name = present(source.find())
    return source.copy(name, target, DiskQuota(target.parent, "a model", 1 << 40)).sha256


def model_at(place: Workplace, name: str = "model.onnx") -> bytes:
    return (place.root / "work/model" / name).read_bytes()


# Volumes


def test_a_file_in_a_folder_of_the_claim(place: Workplace) -> None:
    outcome = place.fetch(place.put("team/a b/relu.onnx", RELU))
    assert (outcome.code, model_at(place)) == (0, RELU)


def test_a_folder_with_one_model_and_external_data(place: Workplace) -> None:
    place.put("bert/net.onnx", broken.external("data/w.bin"))
    place.put("bert/data/w.bin", broken.weights())
    outcome = place.fetch("pvc://models/bert")
    assert "and 1 external data file," in outcome.message
    assert model_at(place, "data/w.bin") == broken.weights()


def test_the_digest_of_several_files_does_not_depend_on_the_model_s_file_name(
    tmp_path: Path,
) -> None:
    digests = set()
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name[0]).mkdir()
        place = Workplace(tmp_path / name[0])
        place.put(name, broken.external("w.bin"))
        place.put("w.bin", broken.weights())
        outcome = place.fetch(f"pvc://models/{name}")
        digests.add(outcome.full["facts"]["digest"])
    assert len(digests) == 1


def test_a_folder_with_two_models_is_ambiguous(place: Workplace) -> None:
    place.put("a.onnx", RELU)
    place.put("b.onnx", RELU)
    outcome = place.fetch("pvc://models/")
    assert outcome.report.reason is Reason.SOURCE_UNREACHABLE
    assert "has 2 .onnx files: a.onnx, b.onnx; name the file" in outcome.message


def test_a_missing_file_is_reported_with_the_existing_ones(place: Workplace) -> None:
    place.put("models/net.onnx", RELU)
    outcome = place.fetch("pvc://models/models/nett.onnx")
    assert outcome.code == ExitCode.TRANSIENT
    assert "no file 'models/nett.onnx'; /models holds net.onnx" in outcome.message


@pytest.mark.parametrize("path", ["../secret.onnx", "a/../../secret.onnx", "link.onnx", "loop"])
def test_a_path_out_of_the_claim_is_refused(path: str, place: Workplace) -> None:
    (place.root / "secret.onnx").write_bytes(RELU)
    (place.root / "source/link.onnx").symlink_to(place.root / "secret.onnx")
    (place.root / "source/loop").symlink_to("loop")
    outcome = place.fetch(f"pvc://models/{path}")
    assert outcome.report.reason is Reason.SOURCE_UNREACHABLE
    assert not (place.root / "work/model/model.onnx").exists()


def test_links_inside_the_claim_become_plain_files(place: Workplace) -> None:
    """The layout of a Hugging Face cache, which onnx and ONNX Runtime refuse as it is."""
    place.put("blobs/1", broken.external("w.bin").SerializeToString())
    place.put("blobs/2", broken.weights())
    snapshot = place.root / "source/snapshots"
    snapshot.mkdir()
    (snapshot / "model.onnx").symlink_to("../blobs/1")
    (snapshot / "w.bin").symlink_to("../blobs/2")
    # external data is looked for beside the name in the address, not beside the blob
    place.complete(place.task("pvc://models/snapshots/model.onnx"))
    assert not (place.root / "work/model/w.bin").is_symlink()


# HTTP


def test_a_model_with_external_data_over_http(web: WebServer, place: Workplace) -> None:
    web.routes["/m/net.onnx"] = serve(broken.external("a #1.bin").SerializeToString())
    web.routes["/m/a%20%231.bin"] = serve(broken.weights())
    place.complete(place.task(f"{web.url}/m/net.onnx?signature=s3cret"))
    assert [path for path, _ in web.seen] == [
        "/m/net.onnx?signature=s3cret",
        "/m/a%20%231.bin?signature=s3cret",
    ]


def test_external_data_that_the_server_lacks(web: WebServer, place: Workplace) -> None:
    web.routes["/net.onnx"] = serve(broken.external("w.bin").SerializeToString())
    outcome = place.fetch(f"{web.url}/net.onnx")
    assert outcome.report.reason is Reason.EXTERNAL_DATA_MISSING
    assert f"{web.url}/w.bin answered 404" in outcome.message


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_refusals_are_reported_with_their_status_and_without_the_query(
    status: int, web: WebServer, command: Workplace
) -> None:
    web.routes["/m.onnx"] = lambda request: request.send(b"no", status)
    outcome = command.fetch(f"{web.url}/m.onnx?signature=s3cret")
    assert outcome.code == ExitCode.TRANSIENT
    assert outcome.report.reason is Reason.SOURCE_UNREACHABLE
    assert f"{web.url}/m.onnx answered {status}" in outcome.message
    assert "s3cret" not in outcome.message + outcome.log
    assert len(web.seen) == 1, "not tried again"


def test_a_refused_connection(place: Workplace) -> None:
    port = free_port()
    outcome = place.fetch(f"http://127.0.0.1:{port}/m.onnx")
    assert outcome.report.reason is Reason.SOURCE_UNREACHABLE
    assert f"cannot connect to 127.0.0.1:{port}: connect call failed" in outcome.message.lower()
    assert "(4 tries)" in outcome.message


def test_a_name_that_does_not_exist(place: Workplace) -> None:
    outcome = place.fetch("https://models.invalid/m.onnx")
    assert outcome.report.reason is Reason.SOURCE_UNREACHABLE
    assert "the name models.invalid cannot be resolved" in outcome.message


@pytest.mark.parametrize(
    ("uri", "reported"),
    [
        ("ftp://host/m.onnx", "is not a supported address; write pvc://"),
        ("https:///m.onnx", "is not a supported address"),
        ("https://ann:pa55@host/m.onnx", "contains a user name; put it into the Secret"),
    ],
)
def test_an_address_that_is_none(uri: str, reported: str, command: Workplace) -> None:
    outcome = command.fetch(uri)
    assert reported in outcome.message
    assert "pa55" not in outcome.message + outcome.log


def test_a_login_page_instead_of_a_model(web: WebServer, place: Workplace) -> None:
    web.routes["/m.onnx"] = serve(b"<html><form>", Content_Type="text/html")
    outcome = place.fetch(f"{web.url}/m.onnx")
    assert (outcome.code, outcome.report.reason) == (ExitCode.PERMANENT, Reason.INVALID_MODEL)


def one_after_another(answers: list[Answer]) -> Answer:
    def answer(request: Request) -> None:
        answers.pop(0)(request)

    return answer


def test_a_download_that_breaks_off_goes_on_where_it_stopped(
    web: WebServer, tmp_path: Path
) -> None:
    content = np.random.default_rng(1).bytes(5_000_000)
    web.routes["/m.onnx"] = cut_off(content, 1_100_000)
    download(web, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == content
    spans = [headers.get("Range") for _, headers in web.seen]
    assert spans[0] is None
    assert len(spans) == 5
    assert all(span is not None and span.startswith("bytes=") for span in spans[1:])
    assert web.seen[1][1]["If-Range"] == '"1"'


OLD, NEW = b"a" * 3_000_000, b"b" * 3_000_000
OLD_DATE, NEW_DATE = "Mon, 06 Jul 2026 10:00:00 GMT", "Tue, 07 Jul 2026 10:00:00 GMT"


def wrong_range(request: Request) -> None:
    request.send(NEW[7:], 206, Content_Range=f"bytes 7-{len(NEW) - 1}/{len(NEW)}")


def refusal(status: int) -> Answer:
    return lambda request: request.send(b"", status, Retry_After="0.01")


def of_date(content: bytes, size: int, date: str) -> Answer:
    return cut_off(content, size, None, Last_Modified=date)


# name: (answers, the content that they are of at last, validators that are asked with for a range)
Validators = list[str | None]
TRIES: dict[str, tuple[list[Answer], bytes, Validators]] = {
    "200 to a range, of another file": (
        [cut_off(OLD, 1_000_000), serve(NEW, ETag='"2"')],
        NEW,
        [None, '"1"'],
    ),
    # of servers that ignore If-Range
    "a range of another ETag": (
        [cut_off(OLD, 1_000_000), *[cut_off(NEW, len(NEW), '"2"')] * 2],
        NEW,
        [None, '"1"', None],
    ),
    "a range without an ETag": (
        [cut_off(OLD, 1_000_000), *[cut_off(NEW, len(NEW), None)] * 2],
        NEW,
        [None, '"1"', None],
    ),
    "a range of another date": (
        [of_date(OLD, 1_000_000, OLD_DATE), *[of_date(NEW, len(NEW), NEW_DATE)] * 2],
        NEW,
        [None, OLD_DATE, None],
    ),
    "a range of another size": (
        [of_date(OLD, 1_000_000, OLD_DATE), *[of_date(NEW + b"b", len(NEW) + 1, OLD_DATE)] * 2],
        NEW + b"b",
        [None, OLD_DATE, None],
    ),
    "no validator": ([cut_off(NEW, 1_000_000, etag=None), serve(NEW)], NEW, [None, None]),
    "another range": (
        [cut_off(NEW, 1_000_000), wrong_range, serve(NEW)],
        NEW,
        [None, '"1"', None],
    ),
    **{
        f"status {status}": ([refusal(status), serve(RELU)], RELU, [None, None])
        for status in (429, 500, 503)
    },
}


@pytest.mark.parametrize(("answers", "content", "validators"), TRIES.values(), ids=TRIES)
def test_several_tries_fetch_one_file(
    answers: list[Answer], content: bytes, validators: Validators, web: WebServer, tmp_path: Path
) -> None:
    web.routes["/m.onnx"] = one_after_another(list(answers))
    download(web, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == content
    assert [headers.get("If-Range") for _, headers in web.seen] == validators
    ranges = ["Range" in headers for _, headers in web.seen]
    assert ranges == [validator is not None for validator in validators]


@pytest.mark.parametrize(("age", "resumed"), [(30, False), (90, True)])
def test_a_recent_date_is_no_strong_validator(
    age: int, resumed: bool, web: WebServer, tmp_path: Path
) -> None:
    content = b"a" * 3_000_000
    modified = formatdate(time.time() - age, usegmt=True)
    answer = cut_off(content, 2_000_000, None, Last_Modified=modified)
    whole = cut_off(content, len(content), None, Last_Modified=modified)
    web.routes["/m.onnx"] = one_after_another([answer, whole])
    download(web, tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == content
    assert web.seen[1][1].get("If-Range") == (modified if resumed else None)


def test_a_server_that_always_breaks_off_at_once_is_given_up(
    web: WebServer, tmp_path: Path
) -> None:
    web.routes["/m.onnx"] = cut_off(b"e" * 1000, 0)
    with pytest.raises(StageFailure, match=r"the connection broke off after 0 B \(4 tries\)"):
        download(web, tmp_path / "m")
    assert len(web.seen) == 4


# fault: Security | a source redirects to another host, which wants its credentials | they are not
#   sent there | prevented
def test_a_redirect_is_followed_without_the_token(web: WebServer, command: Workplace) -> None:
    with WebServer() as other:
        other.routes["/real.onnx"] = serve(RELU)
        web.routes["/m.onnx"] = lambda request: request.send(
            b"", 302, Location=f"http://localhost:{other.server_address[1]}/real.onnx"
        )
        outcome = command.fetch(f"{web.url}/m.onnx", {"token": "t0ken\n"})
        assert outcome.code == 0, outcome.message
        assert web.seen[0][1]["Authorization"] == "Bearer t0ken"
        assert "Authorization" not in other.seen[0][1]
        assert "t0ken" not in outcome.log


@pytest.mark.parametrize(
    ("location", "reported"),
    [
        ("file:///etc/passwd", "it redirects to file:, not to http"),
        ("ftp://host/m.onnx", "it redirects to ftp:, not to http"),
        ("http://host:port/m.onnx", "is no URL"),
        ("http://[::1/m.onnx", "is no URL"),
        ("/m.onnx", "redirects more than 5 times"),
    ],
)
def test_a_redirect_that_leads_nowhere(
    location: str, reported: str, web: WebServer, place: Workplace
) -> None:
    web.routes["/m.onnx"] = lambda request: request.send(b"", 302, Location=location)
    outcome = place.fetch(f"{web.url}/m.onnx")
    assert outcome.report.reason is Reason.SOURCE_UNREACHABLE
    assert reported in outcome.message


# fault: Security | a source redirects from https to http | SourceUnreachable says where to | at `fetch`
def test_a_redirect_from_https_to_http(servers: SourceServers, place: Workplace) -> None:
    answer = (302, {"Location": "http://127.0.0.1:9/m.onnx?signature=s3cret"}, b"")
    with ScriptedServer(lambda _: answer, servers.folder / "tls.pem") as server:
        place.give({"ca.crt": (servers.folder / "ca.crt").read_text()})
        outcome = place.fetch(f"{server.url}/m.onnx")
    assert "it redirects from https to http://127.0.0.1:9/m.onnx, which others" in outcome.message


def test_a_certificate_of_an_authority_of_one_s_own(
    servers: SourceServers, place: Workplace
) -> None:
    with ScriptedServer(lambda _: (200, {}, RELU), servers.folder / "tls.pem") as server:
        outcome = place.fetch(f"{server.url}/m.onnx")
        assert "the certificate of 127.0.0.1 is not trusted" in outcome.message
        place.give({"ca.crt": (servers.folder / "ca.crt").read_text()})
        assert place.fetch(f"{server.url}/m.onnx").code == 0
    (place.root / "credentials/ca.crt").write_text("no PEM")
    outcome = place.fetch("https://host/m.onnx")
    assert "the key ca.crt of the Secret holds no certificate in PEM" in outcome.message


def test_basic_authentication(web: WebServer, place: Workplace) -> None:
    web.routes["/m.onnx"] = serve(RELU)
    secret = {"username": "ann", "password": "pa55"}
    assert place.fetch(f"{web.url}/m.onnx", secret).code == 0
    assert web.seen[0][1]["Authorization"] == "Basic YW5uOnBhNTU="


def test_a_secret_with_other_keys_is_reported(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "user").write_text("ann")
    with pytest.raises(StageFailure, match="has only user; give it the keys token, or username"):
        open_source("https://host/m", tmp_path, tmp_path)
    (tmp_path / "user").unlink()
    with pytest.raises(StageFailure, match="secretRef names does not exist in this namespace"):
        Secret.read(tmp_path)
    assert Secret.read(tmp_path / "none") == Secret()
    assert "t0ken" not in repr(Secret({"token": "t0ken"}))


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        (lambda request: request.send(b"", 200, Content_Encoding="br"), "insists on"),
        (serve(RELU, Content_Encoding="identity"), None),
    ],
)
def test_compressed_bodies_are_refused(
    answer: Callable[[Request], None], reported: str | None, web: WebServer, tmp_path: Path
) -> None:
    web.routes["/m.onnx"] = answer
    if reported is None:
        download(web, tmp_path / "m")
    else:
        with pytest.raises(StageFailure, match=reported):
            download(web, tmp_path / "m")


def test_a_server_that_falls_silent(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_source, "_SILENCE_SECONDS", 0.2)
    ended = threading.Event()

    def silent(_: Request) -> None:
        ended.wait(30)

    web.routes["/m.onnx"] = silent
    try:
        with pytest.raises(StageFailure, match="no answer for 0 s after 0 B"):
            download(web, tmp_path / "m")
    finally:
        ended.set()


def announce(size: int) -> Answer:
    """Return an answer that breaks off after one byte of so many."""

    def answer(request: Request) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(size))
        request.end_headers()
        request.wfile.write(b"x")
        request.close_connection = True

    return answer


def test_a_file_that_does_not_fit_is_not_begun(web: WebServer, tmp_path: Path) -> None:
    web.routes["/m.onnx"] = announce(1 << 60)
    with pytest.raises(StageFailure, match="ephemeral storage") as caught:
        download(web, tmp_path / "m")
    assert caught.value.reason is Reason.STORAGE_FULL


def test_a_file_that_no_protobuf_can_be_is_not_begun(web: WebServer, place: Workplace) -> None:
    web.routes["/m.onnx"] = announce(3 << 30)
    outcome = place.fetch(f"{web.url}/m.onnx")
    assert (outcome.code, outcome.report.reason) == (ExitCode.PERMANENT, Reason.MODEL_TOO_LARGE)
    assert (
        "m.onnx has 3.0 GiB; the limit for files of this type is 2.0 GiB; save" in outcome.message
    )


def test_an_endless_download_ends_at_the_limit(
    web: WebServer, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(request: Request) -> None:
        request.send_response(200)
        request.end_headers()
        with suppress(OSError):
            while True:
                request.wfile.write(bytes(1 << 16))

    monkeypatch.setattr(fetch, "_LARGEST_MODEL", 5_000_000)
    web.routes["/m.onnx"] = endless
    outcome = place.fetch(f"{web.url}/m.onnx")
    assert (outcome.code, outcome.report.reason) == (ExitCode.PERMANENT, Reason.MODEL_TOO_LARGE)
    assert "a model may have 4.8 MiB in all, and with m.onnx it has more" in outcome.message


def test_a_part_of_the_disk_stays_free(
    web: WebServer, place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node whose disk fills up evicts pods, so the last gibibyte of a large disk is not used."""
    usage = shutil.disk_usage(place.root)._replace(total=100 << 30, free=(1 << 30) + 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    web.routes["/m.onnx"] = serve(bytes(1001))
    outcome = place.fetch(f"{web.url}/m.onnx")
    assert (outcome.code, outcome.report.reason) == (ExitCode.TRANSIENT, Reason.STORAGE_FULL)
    assert "the work folder has 1000 B free and m.onnx has 1001 B" in outcome.message


def test_samples_are_fetched_too(web: WebServer, place: Workplace) -> None:
    np.savez(place.root / "golden.npz", x=np.ones((1, 4), np.float32))
    web.routes["/golden.npz"] = serve((place.root / "golden.npz").read_bytes())
    uri = place.put("model.onnx", RELU)
    assert place.stage("fetch", place.task(uri, samples_uri=f"{web.url}/golden.npz")).code == 0
    assert (place.root / "work/samples.npz").exists()
    missing = place.stage("fetch", place.task(uri, samples_uri=f"{web.url}/none.npz"))
    assert missing.report.reason is Reason.SOURCE_UNREACHABLE
    assert "samples: " in missing.message


# what was fetched before


def npz(place: Workplace, value: float) -> Answer:
    np.savez(place.root / "samples.npz", x=np.full((1, 4), value, np.float32))
    return serve((place.root / "samples.npz").read_bytes())


# event: Sources | the source was overwritten, and the artefact is lost or a runtime image makes
#   other artefacts
@pytest.mark.parametrize("part", ["model", "external data", "samples"])
def test_bytes_with_another_digest_are_refused(web: WebServer, place: Workplace, part: str) -> None:
    model = broken.external("w.bin")
    uri = place.put("net.onnx", model)
    place.put("w.bin", broken.weights())
    web.routes["/samples.npz"] = npz(place, 1.0)
    task = place.task(uri, samples_uri=f"{web.url}/samples.npz")
    first = present(place.stage("fetch", task).full)
    pinned = {"model": first["facts"]["digest"], "samples": first["facts"]["samples"]["sha256"]}
    task = task.model_copy(update={"pinned": pinned})
    assert place.stage("fetch", task).code == 0, "the same bytes"
    if part == "model":
        model.producer_name = "another exporter"
        place.put("net.onnx", model)
    elif part == "external data":
        place.put("w.bin", broken.weights()[::-1])
    else:
        web.routes["/samples.npz"] = npz(place, 2.0)
    outcome = place.stage("fetch", task)
    assert (outcome.report.reason, outcome.code) == (Reason.SOURCE_CHANGED, ExitCode.PERMANENT)
    assert "has changed since it was first fetched" in outcome.message
