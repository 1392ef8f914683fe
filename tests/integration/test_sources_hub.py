"""hf:// against a server that speaks the hub's interface: see tests/support/source_hub.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from enginewright_contract.reasons import ExitCode, Reason

from tests.support import broken_models as broken
from tests.support.preparing import Workplace
from tests.support.source_hub import COMMIT, TOKEN, Hub

pytestmark = pytest.mark.usefixtures("hasty")

RELU = broken.relu().SerializeToString()
MODEL = broken.external("w 1.bin").SerializeToString()
LARGE = broken.weights() * 100
FILES = {
    "README.md": b"#",
    "config.json": b"{}",
    "plain.onnx": RELU,
    "onnx/net.onnx": MODEL,
    "onnx/w 1.bin": LARGE,
    "two/a.onnx": RELU,
    "two/b.onnx": RELU,
}


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("path", ["onnx", "onnx/net.onnx"])
def test_a_file_or_a_folder_of_one_commit(private: bool, path: str, place: Workplace) -> None:
    with Hub(FILES, private=private) as hub:
        outcome = place.fetch(f"hf://org/model@v1.0/{path}", hub.secret)
        assert "and 1 external data file," in outcome.message
        assert "Authorization" not in hub.network.seen[0].headers
    assert (place.root / "work/model/w 1.bin").read_bytes() == LARGE
    assert outcome.full["facts"]["source"]["pin"] == f"commit {COMMIT}"


@pytest.mark.parametrize("uri", ["hf://org/model", "hf://org/model@refs/pr/7", "hf://org/model/"])
def test_a_whole_repository(uri: str, place: Workplace) -> None:
    with Hub(FILES) as hub:  # one .onnx at its top, others further down
        assert place.fetch(uri, hub.secret).code == 0
    assert (place.root / "work/model/model.onnx").read_bytes() == RELU


@pytest.mark.parametrize(
    ("uri", "reported"),
    [
        ("hf://org/model/none.onnx", "commit 0123456789ab has no such file"),
        ("hf://org/model@v2/plain.onnx", "there is no such repository or revision"),
        ("hf://other/model/plain.onnx", "there is no such repository or revision"),
        ("hf://org/model/two", "has 2 .onnx files: a.onnx, b.onnx; name the file"),
        ("hf://plain.onnx", "names no repository; write hf://ORG/REPO"),
    ],
)
def test_a_missing_file_or_repository(uri: str, reported: str, place: Workplace) -> None:
    with Hub(FILES) as hub:
        outcome = place.fetch(uri, hub.secret)
    assert (outcome.code, outcome.report.reason) == (ExitCode.TRANSIENT, Reason.SOURCE_UNREACHABLE)
    assert reported in outcome.message


def folder(cursor: str, number: int) -> dict[str, Any]:
    return {"type": "directory", "path": f"{cursor}-{number}", "oid": "0"}


@pytest.mark.parametrize(
    ("lists", "reported", "requests"),
    [
        pytest.param(
            lambda cursor: ([], str(int(cursor or 0) + 1)),
            "is listed on more than 1000 pages; name the file, or a smaller folder",
            1000,
            id="pages",
        ),
        pytest.param(
            lambda cursor: (
                [folder(cursor, number) for number in range(30_000)],
                str(int(cursor or 0) + 1),
            ),
            "has more than 100000 folders; name the file, or a smaller folder",
            4,
            id="folders",
        ),
        pytest.param(
            lambda cursor: ([], "b" if cursor == "a" else "a"),
            "leads back to a page that was listed before; name the file",
            3,
            id="a cycle",
        ),
    ],
)
def test_a_list_that_does_not_end(
    lists: Callable[[str], tuple[list[dict[str, Any]], str]],
    reported: str,
    requests: int,
    place: Workplace,
) -> None:
    with Hub({}, lists=lists) as hub:
        outcome = place.fetch("hf://org/model", hub.secret)
        assert len([seen for seen in hub.server.seen if "/tree/" in seen.path]) == requests
    assert (outcome.code, outcome.report.reason) == (ExitCode.TRANSIENT, Reason.SOURCE_UNREACHABLE)
    assert reported in outcome.message


def test_external_data_that_the_commit_lacks(place: Workplace) -> None:
    with Hub({"net.onnx": MODEL}) as hub:
        outcome = place.fetch("hf://org/model/net.onnx", hub.secret)
    assert outcome.report.reason is Reason.EXTERNAL_DATA_MISSING
    assert "commit 0123456789ab has no file 'w 1.bin'" in outcome.message


def test_a_restricted_model_without_a_token(place: Workplace) -> None:
    with Hub(FILES, private=True) as hub:
        outcome = place.fetch("hf://org/model/plain.onnx", {"HF_ENDPOINT": hub.server.url})
    assert "Access to model org/model is restricted; put a token of an account" in outcome.message


def test_neither_token_nor_signature_is_logged(tmp_path: Path) -> None:
    command = Workplace(tmp_path)
    with Hub(FILES, private=True, corrupt=True) as hub:
        outcome = command.fetch("hf://org/model/onnx", hub.secret)
    assert outcome.report.reason is Reason.DIGEST_MISMATCH
    assert "'onnx/w 1.bin' of hf://org/model/onnx arrived with sha256" in outcome.message
    reported = outcome.message + outcome.log + str(outcome.full)
    assert TOKEN not in reported
    assert "s3cretsig" not in reported
