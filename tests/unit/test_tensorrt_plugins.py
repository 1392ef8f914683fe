"""Plug-in libraries on the real TensorRT-RTX: opened, given to its registry, kept with the engine."""

import re
from pathlib import Path

import pytest
from enginewright.contract.reasons import Reason
from enginewright_runtime.failure import StageFailure
from enginewright_runtime.tensorrt import builder
from enginewright_runtime.tensorrt.builder import Order

from tests.support.engines import matmul, mixed, order
from tests.support.extensions import compile_library


def asked(root: Path, *defined: str) -> tuple[Order, Path]:
    """Return an order whose prepared model has a library beside it."""
    library = compile_library(root / "prepared/extensions", *defined)
    return order(root, matmul()), library


def test_a_library_comes_with_the_engine(tmp_path: Path) -> None:
    given, library = asked(tmp_path, "PLUGIN")
    built = builder.build(given)
    name = f"extensions/{library.name}"
    assert name in built.files
    assert (given.out / name).read_bytes() == library.read_bytes()


def test_a_library_without_creators_registers_by_itself(tmp_path: Path) -> None:
    """It is opened; then its plug-ins are in the registry, or the parser says what it misses."""
    given, _ = asked(tmp_path, "NO_ENTRY")
    assert builder.build(given).engine.nodes_accelerated == 2


def test_parts_are_sought_with_the_plug_ins(tmp_path: Path) -> None:
    compile_library(tmp_path / "prepared/extensions", "PLUGIN")
    assert len(builder.build(order(tmp_path, mixed())).engine.partitions) == 1


@pytest.mark.parametrize(
    ("macros", "told"),
    [
        (("PLUGIN", "UNDEFINED"), "undefined symbol: nowhere_to_be_found"),
        (("PLUGIN", "NO_LOGGER"), "SymbolAddress for setLoggerFinder could not be loaded"),
        (("PLUGIN", "CRASH"), "crashed with SIGABRT"),
        (("PLUGIN", "REGISTRY_CRASH"), "crashed with SIGABRT"),
    ],
)
def test_a_bad_plug_in_is_told_of(macros: tuple[str, ...], told: str, tmp_path: Path) -> None:
    given, library = asked(tmp_path, *macros)
    with pytest.raises(StageFailure) as caught:
        builder.build(given)
    assert caught.value.reason is Reason.EXTENSION_FAILED
    assert f"extension {library.stem[:12]} cannot be used: " in caught.value.message
    assert told in caught.value.message
    assert not re.search(r"[0-9a-f]{64}|/\w+/", caught.value.message)
