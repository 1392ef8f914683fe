"""What is in the keys: every ingredient changes them, nothing else does, and docs/keys.md lists both."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from enginewright.api.inference_engine import InferenceEngine
from enginewright_contract.task import EngineRecipe, Recipe

from tests.support.key_ingredients import (
    ADDRESSES,
    BOTH,
    CPU_MODEL,
    ENGINE,
    FULL,
    NOWHERE,
    OPENVINO,
    PREPARED,
    QUANTIZED,
    Table,
    X,
    Y,
)
from tests.support.key_inputs import Inputs

FACTS: Final = {
    "sha256": "e" * 64,
    "sizeBytes": 1,
    "buildMilliseconds": 1,
    "nodesTotal": 1,
    "nodesAccelerated": 1,
}


def cases(*tables: Table) -> list[Any]:
    """Return every pair, with its name as id."""
    return [
        pytest.param(*pair, id=f"{name} {number}")
        for table in tables
        for name, pairs in table.items()
        for number, pair in enumerate(pairs)
    ]


@pytest.mark.parametrize(("one", "other"), cases(PREPARED, BOTH))
def test_changes_the_prepared_model_and_so_its_engine(one: Inputs, other: Inputs) -> None:
    before, after = one.keys(), other.keys()
    assert before.prepared != after.prepared
    assert before.engine != after.engine or (before.engine is None and after.engine is None)


@pytest.mark.parametrize(("one", "other"), cases(ENGINE))
def test_changes_the_engine(one: Inputs, other: Inputs) -> None:
    before, after = one.keys(), other.keys()
    assert None not in (before.engine, after.engine)
    assert before.engine != after.engine


@pytest.mark.parametrize(("one", "other"), cases(ENGINE))
def test_changes_the_engine_of_an_equal_prepared_model_alone(one: Inputs, other: Inputs) -> None:
    """Another compute capability may also decide which precisions are tried."""
    unbound = (inputs.spec_of(precision="FP16") for inputs in (one, other))
    before, after = (inputs.keys() for inputs in unbound)
    assert before.prepared == after.prepared
    assert before.engine != after.engine


@pytest.mark.parametrize(("one", "other"), cases(NOWHERE))
def test_changes_nothing(one: Inputs, other: Inputs) -> None:
    before, after = one.keys(), other.keys()
    assert before.engine is not None
    assert (before.prepared, before.engine) == (after.prepared, after.engine)


def test_cpu_features_matter_to_int8_alone() -> None:
    widest = CPU_MODEL.on(cpuFeatures=["AVX512", "VNNI"])
    for model in (CPU_MODEL, CPU_MODEL.spec_of(precision="FP32")):
        assert model.keys().prepared == widest.spec_of(**model.spec).keys().prepared
    exact = QUANTIZED.on(cpuFeatures=["VNNI"]).keys()
    assert exact.prepared == widest.spec_of(**QUANTIZED.spec).keys().prepared


def test_openvinos_version_is_left_out_where_its_wheel_identifies_it() -> None:
    (recipe,) = OPENVINO.keys().recipes
    assert isinstance(recipe, Recipe)
    assert recipe.backend_version is None
    (recipe,) = CPU_MODEL.keys().recipes
    assert isinstance(recipe, Recipe)
    assert recipe.backend_version is None


def test_equal_models_of_other_names_and_addresses_share_one_engine() -> None:
    ((one, other),) = NOWHERE["address"]
    (requested,) = one.engines().apply
    built = {**requested, "status": {"engine": FACTS}}
    engine = InferenceEngine.model_validate(built)
    shared = replace(other, name="another").engines(engine)
    assert shared.apply == ()
    assert shared.complete
    assert shared.keys == {other.class_name: engine.spec.key}


def list_rows(heading: str) -> list[str]:
    text = (Path(__file__).parents[2] / "docs" / "keys.md").read_text()
    rows = text.partition(heading)[2].partition("|---|")[2].partition("\n\n")[0].splitlines()[1:]
    return [row.split("|")[1].strip() for row in rows]


def test_the_tables_in_the_docs_are_these() -> None:
    assert sorted(list_rows("## What is in a key")) == sorted({**PREPARED, **ENGINE, **BOTH})
    assert sorted(list_rows("Nothing else does:")) == sorted(NOWHERE)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields of a recipe with their values, by path without indices."""
    match value:
        case dict():
            for name, item in value.items():
                yield from leaves(item, f"{path}.{name}")
        case list() if value and isinstance(value[0], dict):
            for item in value:
                yield from leaves(item, path)
        case _:
            yield path, repr(value)


def test_every_field_of_the_recipes_has_a_case() -> None:
    """A field that a later version adds is shown to change the key, and listed in the docs."""
    seen: dict[type[object], set[str]] = {Recipe: set(), EngineRecipe: set()}
    for table in (PREPARED, ENGINE, BOTH):
        for pair in (pair for pairs in table.values() for pair in pairs):
            before, after = (inputs.keys().recipes for inputs in pair)
            for one, other in zip(before, after, strict=False):
                differing = set(leaves(one.model_dump(mode="json"))) ^ set(
                    leaves(other.model_dump(mode="json"))
                )
                seen[type(one)] |= {path for path, _ in differing}
    full = FULL.spec_of(
        shapes=[X | {"range": {"low": "0", "high": "1"}}],
        parity={"samples": {"uri": "s3://models/samples.npz"}, "outputs": [Y]},
    )
    for recipe in full.keys().recipes:
        fields = {path for path, _ in leaves(recipe.model_dump(mode="json"))}
        unproven = fields - seen[type(recipe)] - ADDRESSES
        assert unproven == set()
