"""Plug-in libraries on the real TensorRT-RTX: opened, given to its registry, kept with the engine."""

import re
from pathlib import Path

import pytest
from enginewright_contract.reasons import Reason
from enginewright_runtime.core.failure import StageFailure
from enginewright_runtime.engine import builder
from enginewright_runtime.engine.builder import BuildRequest

from tests.support.engines import build_mixed, build_request, matmul
from tests.support.extensions import compile_library, compile_plugin, cube


def make_request(root: Path, *defined: str) -> tuple[BuildRequest, Path]:
    """Return a request whose prepared model has a library beside it."""
    library = compile_library(root / "prepared/extensions", *defined)
    return build_request(root, matmul()), library


def test_a_library_comes_with_the_engine(tmp_path: Path) -> None:
    library = compile_plugin(tmp_path / "prepared/extensions")
    given = build_request(tmp_path, build_mixed())
    built = builder.build(given)
    assert len(built.engine.partitions) == 1
    name = f"extensions/{library.name}"
    assert name in built.files
    assert (given.out / name).read_bytes() == library.read_bytes()


def test_the_parser_finds_the_plug_in(tmp_path: Path) -> None:
    """TensorRT-RTX 1.7.1 makes it and then ends its process: its networks take no plug-ins.

    What matters here is that this is reported, as any crash of native code.
    """
    compile_plugin(tmp_path / "prepared/extensions")
    given = build_request(tmp_path, cube())
    with pytest.raises(StageFailure) as caught:
        builder.build(given)
    assert "Successfully created plugin: Cube" in (given.out / "build.log").read_text()
    assert caught.value.reason is Reason.BACKEND_CRASHED
    assert "with TensorRT-RTX and the plug-ins of spec.extensions crashed" in caught.value.message


def test_without_the_plug_in_the_parser_misses_it(tmp_path: Path) -> None:
    with pytest.raises(StageFailure) as caught:
        builder.build(build_request(tmp_path, cube()))
    assert caught.value.reason is Reason.UNSUPPORTED_OPERATOR
    assert "has no implementation of cube (Cube), nor a plugin" in caught.value.message


def test_a_library_without_creators_registers_by_itself(tmp_path: Path) -> None:
    """It is opened; then its plug-ins are in the registry, or the parser says what it misses."""
    given, _ = make_request(tmp_path, "NO_ENTRY")
    assert builder.build(given).engine.nodes_accelerated == 2


@pytest.mark.parametrize(
    ("macros", "reported"),
    [
        (("PLUGIN", "UNDEFINED"), "undefined symbol: nowhere_to_be_found"),
        (("PLUGIN", "NO_LOGGER"), "SymbolAddress for setLoggerFinder could not be loaded"),
        (("PLUGIN",), "No creator returned by getPluginCreators"),
        (("PLUGIN", "CRASH"), "crashed with SIGABRT"),
        (("PLUGIN", "REGISTRY_CRASH"), "crashed with SIGABRT"),
    ],
)
def test_a_bad_plug_in_is_reported(macros: tuple[str, ...], reported: str, tmp_path: Path) -> None:
    given, library = make_request(tmp_path, *macros)
    with pytest.raises(StageFailure) as caught:
        builder.build(given)
    assert caught.value.reason is Reason.EXTENSION_FAILED
    assert f"extension {library.stem[:12]} cannot be used: " in caught.value.message
    assert reported in caught.value.message
    assert not re.search(r"[0-9a-f]{64}|/\w+/", caught.value.message)
