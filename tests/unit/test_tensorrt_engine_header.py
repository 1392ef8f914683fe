"""The first bytes of engines that TensorRT built on a device, read without one."""

import struct

import pytest
from enginewright_runtime.tensorrt.header import EngineHeader, is_version, parse_header

# of an engine that TensorRT 10.6 built on an H200
BUILT_ON_H200 = (
    bytes.fromhex("66747274000000000200000000000000") + struct.pack("<Q", 4018796) + bytes([10, 6, 0, 26])
)  # fmt: skip


def test_an_engine_of_tensorrt_says_who_built_it_and_how_large_it_is() -> None:
    head = BUILT_ON_H200 + b"rtrtNGNE"
    assert parse_header(head) == EngineHeader("tensorrt", "10.6.0.26", 4018796, ())


def test_a_file_of_another_kind_has_no_header() -> None:
    assert parse_header(b"ptrt" + BUILT_ON_H200[4:] + b"rtrtNGNE") is None
    assert parse_header(BUILT_ON_H200) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.6.0.26", "10.6.0", True),
        ("10.6.0", "10.6.0.26", True),
        ("1.7.1.116", "1.7.1.116", True),
        ("10.16.1.11", "10.6.0", False),
        ("10.60.0.26", "10.6.0", False),
        ("1.7.1.116", "1.7.1.117", False),
    ],
)
def test_versions_agree_as_far_as_both_are_stated(one: str, other: str, same: bool) -> None:
    assert is_version(one, other) is same
