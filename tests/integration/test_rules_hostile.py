"""Files made to bring the stage down: each gets its reason, in plain text, in time, leaving nothing."""

import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from enginewright_contract.manifest import ArtifactFile
from enginewright_contract.reasons import Reason, exit_code
from enginewright_runtime.core import limits
from enginewright_runtime.core.handoff import Fetched
from enginewright_runtime.prepare.validate import inspection
from onnx import ModelProto

from tests.support import broken_models as broken
from tests.support import hostile
from tests.support.preparing import Outcome, Workplace

SECONDS = 60.0  # the slowest takes 3 on a quiet machine
Content = ModelProto | bytes
GIBIBYTE = 1 << 30


@dataclass(frozen=True)
class Case:
    """A hostile model, as it lies in the work folder."""

    name: str
    content: Callable[[], Content]
    reason: Reason | None  # unless it does no harm, and passes
    reported: str
    beside: Callable[[Path], None] | None = None  # writes w.bin


def fifo(path: Path) -> None:
    os.mkfifo(path)


def weights(path: Path) -> None:
    path.write_bytes(broken.weights())


def unix_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path has 108 bytes at most
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


CASES = (
    Case("bodies past protobuf's depth", lambda: hostile.nest_bodies(33), Reason.INVALID_MODEL,
         "deeper than protobuf parsers accept"),
    Case("bodies as deep as can be", lambda: hostile.nest_bodies(31), None, "63 nodes"),
    Case("a million nodes", lambda: hostile.many_nodes(1_000_000), Reason.MODEL_TOO_LARGE,
         "more than 500000 nodes"),
    Case("nodes of two bytes", lambda: hostile.two_byte_nodes(2_000_000), Reason.MODEL_TOO_LARGE,
         "more than 500000 nodes"),
    Case("attributes of two bytes", lambda: hostile.two_byte_attributes(6_000_000),
         Reason.MODEL_TOO_LARGE, "tensors, attributes and names"),
    Case("names of a million letters", lambda: hostile.long_names(1_000_000), None, "2 nodes"),
    Case("an unknown operator of a million letters", lambda: hostile.long_operator(1_000_000),
         Reason.UNSUPPORTED_OPERATOR, "ZZZ…"),
    Case("a function that calls itself", lambda: hostile.functions({"F0": ["F0"]}),
         Reason.INVALID_MODEL, "calls itself: F0 > F0"),
    Case("functions that call each other", lambda: hostile.functions(
        {"F0": ["F1"], "F1": ["F2", "F2"], "F2": ["F0"]}), Reason.INVALID_MODEL, "F0 > F1 > F2 > F0"),
    Case("functions that double", lambda: hostile.exploding_functions(60), Reason.MODEL_TOO_LARGE,
         "all functions inlined"),
    Case("escapes in an operator", hostile.escapes_in_operator, Reason.INVALID_MODEL,
         r"\x1b[31mFoo\x1b]0;owned\x07\r\nlevel=error msg=forged\x9b2J"),
    Case("escapes in a standard operator", lambda: hostile.escapes_in_operator(""),
         Reason.INVALID_MODEL, r"\x1b[31mFoo"),
    Case("escapes in an input", hostile.escapes_in_input, Reason.INVALID_MODEL, r"\x1b]0;owned\x07"),
    Case("a product of sizes past 64 bits", lambda: hostile.huge_tensor(2**62, 2**62),
         Reason.INVALID_MODEL, "w [4611686018427387904, 4611686018427387904]"),
    Case("sizes whose product wraps to nothing", lambda: hostile.huge_tensor(2**32, 2**32),
         Reason.INVALID_MODEL, "w [4294967296, 4294967296]"),
    Case("a negative size", lambda: hostile.huge_tensor(-4), Reason.INVALID_MODEL, "w [-4]"),
    Case("an input of a yobibyte", lambda: hostile.huge_input(2**40, 2**40), Reason.INVALID_MODEL,
         "at its smallest"),
    Case("external data in /dev/zero", lambda: broken.external("/dev/zero"),
         Reason.EXTERNAL_DATA_MISSING, "outside the model's folder: w ('/dev/zero')"),
    Case("external data in /proc/self/mem", lambda: broken.external("/proc/self/mem"),
         Reason.EXTERNAL_DATA_MISSING, "outside the model's folder: w ('/proc/self/mem')"),
    Case("external data linked to /dev/zero", lambda: broken.external("w.bin"),
         Reason.EXTERNAL_DATA_MISSING, "outside the model's folder: w ('w.bin')",
         lambda path: path.symlink_to("/dev/zero")),
    Case("external data linked to itself", lambda: broken.external("w.bin"),
         Reason.EXTERNAL_DATA_MISSING, "'w.bin'", lambda path: path.symlink_to("w.bin")),
    Case("external data in a pipe", lambda: broken.external("w.bin"), Reason.EXTERNAL_DATA_MISSING,
         "not a regular file: 'w.bin'", fifo),
    Case("external data in a socket", lambda: broken.external("w.bin"), Reason.EXTERNAL_DATA_MISSING,
         "not a regular file: 'w.bin'", unix_socket),
    Case("external data in a folder", lambda: broken.external("w.bin"), Reason.EXTERNAL_DATA_MISSING,
         "not a regular file: 'w.bin'", lambda path: path.mkdir()),
    Case("external data with NUL in its name", lambda: broken.external("w.bin\0.txt"),
         Reason.EXTERNAL_DATA_MISSING, r"outside the model's folder: w ('w.bin\x00.txt')"),
    Case("external data at an offset past 64 bits", lambda: broken.external("w.bin", offset=2**64),
         Reason.EXTERNAL_DATA_MISSING, "offset '18446744073709551616' is not a number of bytes",
         weights),
    Case("external data whose end is past 64 bits", lambda: broken.external(
        "w.bin", offset=2**63 - 8), Reason.EXTERNAL_DATA_MISSING, "truncated",
         weights),
    Case("eight gibibytes of external data, of which 64 bytes are read",
         lambda: broken.external("w.bin", offset=8 * GIBIBYTE - 64), None, "1 node",
         lambda path: hostile.sparse_file(path, 8 * GIBIBYTE)),
    Case("a zip archive", lambda: b"PK\x03\x04" + bytes(999), Reason.INVALID_MODEL, "not an ONNX model"),
    Case("a pickle", hostile.a_pickle, Reason.INVALID_MODEL, "not an ONNX model"),
    Case("names of Latin-1", lambda: broken.relu().SerializeToString().replace(b"relu", b"r\xe4lu"),
         Reason.INVALID_MODEL, r"not UTF-8: b'r\xe4lu'"),
)  # fmt: skip


@pytest.fixture
def place(strict_place: Workplace) -> Iterator[Workplace]:
    """Run the stage here; no process of it may be left."""
    before = children()  # servers of other tests
    yield strict_place
    assert children() <= before


def children() -> set[str]:
    """Return the children of this process."""
    tasks = Path("/proc/self/task").iterdir()
    return {pid for task in tasks for pid in (task / "children").read_text().split()}


def validate(place: Workplace) -> Outcome:
    """Run the stage on what lies in the work folder."""
    path = place.root / "work/model/model.onnx"
    size = path.stat().st_size if path.exists() else 0
    file = ArtifactFile(path="model.onnx", sha256="0" * 64, size_bytes=size)
    Fetched(files=(file,), model_digest="0" * 64, samples=False).write(place.root / "work")
    began = time.monotonic()
    outcome = place.stage("validate", place.task("pvc://models/model.onnx"))
    assert time.monotonic() - began < SECONDS
    return outcome


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_hostile(case: Case, place: Workplace) -> None:
    folder = place.root / "work/model"
    folder.mkdir()
    content = case.content()
    raw = content if isinstance(content, bytes) else content.SerializeToString()
    (folder / "model.onnx").write_bytes(raw)
    if case.beside is not None:
        case.beside(folder / "w.bin")
    before = sorted(path.name for path in folder.iterdir())
    outcome = validate(place)
    assert (outcome.report.reason, outcome.code) == (case.reason, exit_code(case.reason))
    assert case.reported in outcome.message
    assert len(outcome.message) <= 1024
    for finding in outcome.full["findings"]:
        assert (finding["cause"] + finding.get("remedy", "")).isprintable()
        assert all(label.isprintable() and len(label) < 400 for label in finding["nodes"])
        assert finding["rule"]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_eight_gibibytes(place: Workplace) -> None:
    folder = place.root / "work/model"
    folder.mkdir()
    start = broken.relu().SerializeToString()
    hostile.sparse_file(folder / "model.onnx", 8 * GIBIBYTE, start)
    outcome = validate(place)
    assert outcome.report.reason is Reason.MODEL_TOO_LARGE
    assert "has 8.0 GiB; protobuf's limit is 2 GiB" in outcome.message


def test_the_model_is_a_pipe(place: Workplace) -> None:
    (place.root / "work/model").mkdir()
    os.mkfifo(place.root / "work/model/model.onnx")
    outcome = validate(place)
    assert outcome.report.reason is Reason.INVALID_MODEL
    assert "not a regular file" in outcome.message


def test_a_model_that_takes_all_memory_ends_its_reader_alone(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 MB of the file want 3 GB, and the container has one."""
    (place.root / "work/model").mkdir()
    (place.root / "work/model/model.onnx").write_bytes(hostile.two_byte_nodes(20_000_000))
    monkeypatch.setattr(limits, "memory_limit", lambda: GIBIBYTE)
    outcome = validate(place)
    assert outcome.report.reason is Reason.OUT_OF_MEMORY
    assert "reading the model" in outcome.message


def test_it_ends_no_stage_that_only_looks_for_external_data(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.put("model.onnx", hostile.two_byte_nodes(20_000_000))
    monkeypatch.setattr(limits, "memory_limit", lambda: GIBIBYTE)
    stage, outcome = place.prepare(place.task("pvc://models/model.onnx"))
    assert (stage, outcome.report.reason) == ("validate", Reason.OUT_OF_MEMORY)


def test_a_model_that_takes_too_long_to_read_is_given_up(
    place: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.root / "work/model").mkdir()
    (place.root / "work/model/model.onnx").write_bytes(hostile.many_nodes(200_000))
    monkeypatch.setattr(inspection, "_SECONDS", 0.2)
    outcome = validate(place)
    assert outcome.report.reason is Reason.TIMEOUT
    assert "reading the model took longer" in outcome.message
