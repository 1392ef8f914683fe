"""What is removed from a store: never what is needed or was used lately, and never more than the limits ask for."""

from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
from enginewright_contract.collection import KEPT_CHARACTERS, LEAST_AGE_SECONDS, CollectTask
from enginewright_runtime.store import ENGINE, PREPARED
from enginewright_runtime.store.artifacts import Artifact
from enginewright_runtime.store.collection_plan import plan_collection, total_bytes
from enginewright_runtime.store.medium import Stored
from hypothesis import example, given

NOW = datetime(2026, 11, 25, 8, tzinfo=UTC)
HOUR = 3600.0
KEYS = [f"{number:x}" * 64 for number in range(10)]
FILES = {f"files/{number}": 2**number for number in range(8)}  # every sum tells what is in it


def make_stored(key: str, hours: float, *names: str, engine: bool = False) -> Stored:
    """Return an artefact that was used so many hours ago."""
    artifact = Artifact(ENGINE if engine else PREPARED, key)
    sizes = {name: FILES[name] for name in names}
    return Stored(artifact, NOW - timedelta(hours=hours), "", {**sizes, artifact.manifest: 1})


def task(keep: tuple[str, ...] = (), **fields: object) -> CollectTask:
    beginnings = [key[:KEPT_CHARACTERS] for key in keep]
    usual = {"job": "c", "keep": beginnings, "as_of": NOW, "min_age_seconds": LEAST_AGE_SECONDS}
    return CollectTask.model_validate(usual | fields)


def artefacts() -> st.SearchStrategy[list[Stored]]:
    one = st.builds(
        lambda key, hours, names, engine: make_stored(key, hours, *names, engine=engine),
        st.sampled_from([*KEYS, "not-a-digest"]),
        st.integers(min_value=-3, max_value=12),
        st.sets(st.sampled_from(sorted(FILES))),
        st.booleans(),
    )
    return st.lists(one, unique_by=lambda item: item.artifact, max_size=6)


TASKS = st.builds(
    lambda keep, oldest, largest, least: task(
        tuple(keep), max_age_seconds=oldest, max_bytes=largest, min_age_seconds=least
    ),
    st.sets(st.sampled_from(KEYS)),
    st.none() | st.sampled_from([0.0, HOUR, 5 * HOUR]),
    st.none() | st.integers(min_value=0, max_value=600),
    st.sampled_from([LEAST_AGE_SECONDS, 4 * HOUR]),
)


@given(artefacts(), TASKS)
def test_needed_or_recent_artefacts_stay(result: list[Stored], asked: CollectTask) -> None:
    plan = plan_collection(result, asked)
    for item in plan.removed:
        assert item.artifact.key[:KEPT_CHARACTERS] not in asked.keep
        assert item.used <= NOW - timedelta(seconds=asked.min_age_seconds)
        assert item.artifact.key in KEYS
    assert {item.artifact for item in plan.needed} == {
        item.artifact for item in result if item.artifact.key[:KEPT_CHARACTERS] in asked.keep
    }


@given(artefacts(), TASKS)
@example(
    [make_stored(KEYS[0], 9, "files/7"), make_stored(KEYS[1], 8, "files/7")], task(max_bytes=0)
)
def test_no_more_is_removed_than_needed(result: list[Stored], asked: CollectTask) -> None:
    plan = plan_collection(result, asked)
    if asked.max_age_seconds is None and asked.max_bytes is None:
        assert plan.removed == ()
        return
    last = plan.removed[-1:]
    before = [item for item in result if item not in plan.removed or item in last]
    for item in last:
        is_old = asked.max_age_seconds is not None and item.used <= NOW - timedelta(
            seconds=asked.max_age_seconds
        )
        is_large = asked.max_bytes is not None and total_bytes(before) > asked.max_bytes
        assert is_old or is_large


@given(artefacts(), TASKS)
def test_rest_is_needed_or_within_limits(result: list[Stored], asked: CollectTask) -> None:
    plan = plan_collection(result, asked)
    remaining = [item for item in result if item not in plan.removed]
    kept_since = NOW - timedelta(seconds=asked.min_age_seconds)
    free = [
        item
        for item in remaining
        if item not in plan.needed and item.used <= kept_since and item.artifact.key in KEYS
    ]
    if asked.max_bytes is not None and total_bytes(remaining) > asked.max_bytes:
        assert free == []
    if asked.max_age_seconds is not None:
        oldest = NOW - timedelta(seconds=asked.max_age_seconds)
        assert not any(item.used <= oldest for item in free)
    assert all(one.used <= other.used for one in plan.removed for other in free), (
        "the longest unused first"
    )


def test_a_needed_engine_does_not_need_its_prepared_model() -> None:
    prepared, engine = make_stored(KEYS[0], 9), make_stored(KEYS[1], 9, engine=True)
    plan = plan_collection([prepared, engine], task((KEYS[1],), max_age_seconds=0))
    assert plan.removed == (prepared,)
    assert plan.needed == (engine,)


def test_shared_files_are_counted_once() -> None:
    """Neither frees the file alone; a third one is not removed, too."""
    result = [make_stored(KEYS[number], 9 - number, "files/7") for number in range(2)]
    result += [make_stored(KEYS[2], 5, "files/3")]
    plan = plan_collection(result, task(max_bytes=20))
    assert plan.removed == tuple(result[:2])
    assert total_bytes(result) == 128 + 8 + 3
