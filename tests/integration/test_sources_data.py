"""Calibration data, samples and extensions: where they are laid out, and what is refused."""

import io
import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from enginewright_contract.reasons import ExitCode, Reason
from enginewright_contract.task import Calibration, Extension, PrepareTask, Quantization
from enginewright_runtime.core.handoff import Fetched
from enginewright_runtime.prepare.fetch import stage as fetch

from tests.support import broken_models as broken
from tests.support.preparing import Workplace
from tests.support.web import WebServer, serve

pytestmark = pytest.mark.usefixtures("hasty")

RELU = broken.relu().SerializeToString()
LIBRARY = b"\x7fELF library"
DIGEST = sha256(LIBRARY).hexdigest()


def npz() -> bytes:
    packed = io.BytesIO()
    np.savez(packed, x=np.ones((8, 4), np.float32))
    return packed.getvalue()


def npy() -> bytes:
    packed = io.BytesIO()
    np.save(packed, np.ones((1, 4), np.float32))
    return packed.getvalue()


def zip_files(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as opened:
        for name, content in files.items():
            opened.writestr(name, content)
    return packed.getvalue()


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def calibrate_task(place: Workplace, uri: str) -> PrepareTask:
    quantization = Quantization(calibration=Calibration(uri=uri))
    return place.task(place.put("model.onnx", RELU), quantization=quantization)


def extend_task(
    place: Workplace, *extensions: tuple[str, str], uri: str | None = None
) -> PrepareTask:
    listed = tuple(
        Extension(uri=where, sha256=digest, type="CustomOperators") for where, digest in extensions
    )
    return place.task(uri or place.put("model.onnx", RELU), extensions=listed)


def list_calibration(place: Workplace) -> list[str]:
    folder = place.root / "work/calibration"
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


IMAGES = {"cats/1 é.png": b"\x89PNG 1", "dogs/2.jpg": b"\xff\xd8 2", ".DS_Store": b"x"}


@pytest.mark.parametrize(
    ("files", "path", "expected"),
    [
        ({"calib.npz": npz()}, "calib.npz", ["data.npz"]),
        ({"set/calib.NPZ": npz()}, "set", ["data.npz"]),
        ({"set/1.npy": npy(), "set/2.npy": npy()}, "set/", ["1.npy", "2.npy"]),
        ({"one.npy": npy()}, "one.npy", ["one.npy"]),
        ({f"set/{name}": content for name, content in IMAGES.items()}, "set",
         ["cats/1 é.png", "dogs/2.jpg"]),
        ({"images.zip": zip_files(IMAGES)}, "images.zip", ["cats/1 é.png", "dogs/2.jpg"]),
        ({"arrays.zip": zip_files({"1.npy": npy()})}, "arrays.zip", ["1.npy"]),
        ({"packed.zip": zip_files({"calib.npz": npz()})}, "packed.zip", ["data.npz"]),
    ],
)  # fmt: skip
def test_calibration_data_is_laid_out_as_it_is(
    files: dict[str, bytes], path: str, expected: list[str], place: Workplace
) -> None:
    put(place.root / "calibration", files)
    task = calibrate_task(place, f"pvc://data/{path}")
    place.stage("fetch", task)
    outcome = place.stage("fetch", task)  # a second try of the pod finds what the first left
    assert outcome.code == 0, outcome.message
    assert list_calibration(place) == expected
    facts = outcome.full["facts"]["calibration"]
    assert facts["files"] == len(expected)
    assert Fetched.read(place.root / "work").calibration == facts["digest"]
    assert not list((place.root / "work").glob("unpacked-*"))


def test_the_digest_of_calibration_data_follows_its_content(place: Workplace) -> None:
    digests = []
    for last in (b"1", b"2"):
        put(place.root / "calibration", {"a.npy": npy(), "b.npy": npy() + last})
        place.stage("fetch", calibrate_task(place, "pvc://data/"))
        digests.append(Fetched.read(place.root / "work").calibration)
    assert digests[0] != digests[1]


def test_calibration_data_over_http_with_credentials_of_its_own(
    web: WebServer, place: Workplace
) -> None:
    web.routes["/calib.npz"] = serve(npz())
    put(place.root, {"calibration-credentials/token": b"t0ken", "credentials/token": b"other"})
    outcome = place.stage("fetch", calibrate_task(place, f"{web.url}/calib.npz"))
    assert outcome.code == 0, outcome.message
    assert list_calibration(place) == ["data.npz"]
    assert web.seen[0][1]["Authorization"] == "Bearer t0ken"


@pytest.mark.parametrize(
    ("content", "reason", "reported"),
    [
        (b"<html>", Reason.CALIBRATION_INVALID, "is an HTML page"),
        (b"", Reason.CALIBRATION_INVALID, "is empty"),
        (zip_files({"../evil.npy": b"x"}), Reason.CALIBRATION_INVALID, "leads out of the folder"),
        (zip_files({".hidden": b"x"}), Reason.CALIBRATION_INVALID, "has no files"),
        (None, Reason.SOURCE_UNREACHABLE, "/calib answered 404"),
    ],
)
def test_calibration_data_that_is_none(
    content: bytes | None, reason: Reason, reported: str, web: WebServer, place: Workplace
) -> None:
    if content is not None:
        web.routes["/calib"] = serve(content)
    outcome = place.stage("fetch", calibrate_task(place, f"{web.url}/calib"))
    assert outcome.report.reason is reason
    assert outcome.message.startswith("calibration data: ")
    assert reported in outcome.message
    assert "spec.quantization.calibration" in outcome.message


def test_calibration_data_beyond_the_limit(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_LARGEST_CALIBRATION", 300)
    put(place.root / "calibration", {f"{n}.npy": npy() for n in range(3)})
    outcome = place.stage("fetch", calibrate_task(place, "pvc://data/"))
    assert (outcome.code, outcome.report.reason) == (ExitCode.PERMANENT, Reason.MODEL_TOO_LARGE)
    assert "calibration data may have 300 B in all, and with 2.npy it has more" in outcome.message


def test_extensions_are_named_by_their_digests(web: WebServer, place: Workplace) -> None:
    other = b"\x7fELF other"
    put(place.root / "extensions", {"ops/lib/libops.so": LIBRARY})
    web.routes["/libother.so"] = serve(other)
    digest = sha256(other).hexdigest()
    task = extend_task(
        place, ("pvc://ops/lib/libops.so", DIGEST.upper()), (f"{web.url}/libother.so", digest)
    )
    outcome = place.stage("fetch", task)
    assert outcome.code == 0, outcome.message
    folder = place.root / "work/extensions"
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        f"{DIGEST}.so": LIBRARY,
        f"{digest}.so": other,
    }
    assert [item["sha256"] for item in outcome.full["facts"]["extensions"]] == [DIGEST, digest]


def test_an_extension_with_another_digest(web: WebServer, place: Workplace) -> None:
    web.routes["/libops.so"] = serve(b"<html>login")
    outcome = place.stage("fetch", extend_task(place, (f"{web.url}/libops.so", DIGEST)))
    assert (outcome.code, outcome.report.reason) == (ExitCode.PERMANENT, Reason.DIGEST_MISMATCH)
    assert f"spec.extensions says {DIGEST}; it is an HTML page" in outcome.message


def test_the_source_s_credentials_are_shown_to_its_own_host_alone(
    web: WebServer, place: Workplace
) -> None:
    web.routes["/m.onnx"] = serve(RELU)
    web.routes["/libops.so"] = serve(LIBRARY)
    put(place.root, {"credentials/token": b"t0ken"})
    with WebServer() as other:
        other.routes["/libops.so"] = serve(LIBRARY)
        task = extend_task(
            place,
            (f"{web.url}/libops.so", DIGEST),
            (f"{other.url}/libops.so", DIGEST),
            uri=f"{web.url}/m.onnx",
        )
        assert place.stage("fetch", task).code == 0
        assert web.seen[-1][1]["Authorization"] == "Bearer t0ken"
        assert "Authorization" not in other.seen[0][1]


def test_samples_may_lie_in_a_folder(place: Workplace) -> None:
    put(place.root / "samples", {"golden/cats.npz": npz(), "golden/README.md": b"#"})
    uri = place.put("model.onnx", RELU)
    outcome = place.stage("fetch", place.task(uri, samples_uri="pvc://data/golden"))
    assert outcome.code == 0, outcome.message
    assert (place.root / "work/samples.npz").read_bytes() == npz()
