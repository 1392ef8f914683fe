"""A real engine, checked without a GPU: what it is, what it was built by and what it runs on."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from enginewright_contract.manifest import EngineInfo
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.digests import file_sha256
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.engine import builder
from enginewright_runtime.tensorrt.header import EngineHeader, check_engine, read_header

from tests.support.engines import VERSION, build_request, matmul, recipe


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, EngineInfo]:
    """Build an engine for compute capability 8.6."""
    asked = build_request(tmp_path_factory.mktemp("built"), matmul(), how=recipe("8.6"))
    info = builder.build(asked).engine
    return (asked.out / info.file).read_bytes(), info


@pytest.fixture
def engine(built: tuple[bytes, EngineInfo], tmp_path: Path) -> Path:
    path = tmp_path / "model.engine"
    path.write_bytes(built[0])
    return path


def rewrite_engine(path: Path, info: EngineInfo) -> EngineInfo:
    """Return what a manifest of the changed file would say."""
    content = file_sha256(path)
    return info.model_copy(update={"sha256": content.sha256, "size_bytes": content.size_bytes})


def patch(path: Path, offset: int, value: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[offset : offset + len(value)] = value
    path.write_bytes(content)


def test_the_header_describes_the_engine(built: tuple[bytes, EngineInfo], engine: Path) -> None:
    header = EngineHeader("tensorrt-rtx", VERSION, len(built[0]), ("8.6",))
    assert read_header(engine) == header
    check_engine(engine, built[1], "8.6", VERSION)
    check_engine(engine, built[1], None, None)


@pytest.mark.parametrize(
    ("capability", "version", "reason", "reported"),
    [
        ("8.9", VERSION, Reason.ENGINE_INCOMPATIBLE, "capability 8.6, but this device has 8.9"),
        (
            "8.6",
            "1.8.0.1",
            Reason.ENGINE_VERSION_MISMATCH,
            f"{VERSION}, but this image has 1.8.0.1",
        ),
    ],
    ids=["another device", "another version"],
)
def test_an_engine_of_another_kind_is_refused(
    capability: str, version: str, reason: Reason, reported: str,
    built: tuple[bytes, EngineInfo], engine: Path,
) -> None:  # fmt: skip
    with pytest.raises(StageFailure) as caught:
        check_engine(engine, built[1], capability, version)
    assert (caught.value.reason, reported in caught.value.message) == (reason, True)


def test_the_file_is_believed_more_than_its_manifest(
    built: tuple[bytes, EngineInfo], engine: Path
) -> None:
    patch(engine, 24, bytes([1, 6, 1, 120]))
    patch(engine, 32, struct.pack("<I", 8 | 16))
    info = rewrite_engine(engine, built[1])
    with pytest.raises(StageFailure, match=r"built by tensorrt-rtx 1\.6\.1\.120"):
        check_engine(engine, info, "8.6", VERSION)
    with pytest.raises(StageFailure, match=r"runs on compute capability 8\.9, 12\.0"):
        check_engine(engine, info, "8.6", None)


def flip(path: Path) -> None:
    patch(path, len(path.read_bytes()) // 2, b"\xff\x00\xff\x00")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def no_engine(path: Path) -> None:
    patch(path, 0, b"none")


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (flip, "its sha256 is"),
        (cut, "bytes instead of"),
        (no_engine, "and it has no engine header"),
        (Path.unlink, "it cannot be read: No such file"),
    ],
)
def test_damage(
    damage: Callable[[Path], None], reported: str, built: tuple[bytes, EngineInfo], engine: Path
) -> None:
    damage(engine)
    with pytest.raises(StageFailure) as caught:
        check_engine(engine, built[1], "8.6", VERSION)
    assert caught.value.reason is Reason.ENGINE_CORRUPT
    assert "engine file model.engine is damaged" in caught.value.message
    assert reported in caught.value.message


def test_a_header_of_another_kind_is_a_warning(
    built: tuple[bytes, EngineInfo], engine: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The format is not documented and may change: the digest is the proof, the manifest the facts."""
    no_engine(engine)
    info = rewrite_engine(engine, built[1])
    check_engine(engine, info, "8.6", VERSION)
    assert "has an unknown format: not checked" in caplog.text
    with pytest.raises(StageFailure, match=r"this device has 8\.9"):
        check_engine(engine, info, "8.9", VERSION)
    engine.write_bytes(b"short")
    assert read_header(engine) is None
