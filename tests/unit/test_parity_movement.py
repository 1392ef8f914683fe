"""What the samples move an output by: within its positions, and in each sample by its own scale."""

from collections.abc import Mapping

import numpy as np
import pytest
from enginewright_runtime.proof.parity import movement as movement_module
from enginewright_runtime.proof.parity.comparison import ParityVerdict
from enginewright_runtime.proof.parity.movement import Movement
from enginewright_runtime.proof.parity.part_sums import WHOLE
from enginewright_runtime.proof.parity.parts_builder import PartsBuilder
from enginewright_runtime.proof.parity.parts_judge import PartsJudge
from enginewright_runtime.proof.parity.tolerances import DEFAULTS, ROUNDING, Tolerances

from tests.support.judged_parts import NAME, TYPES, Array, Change, build_parts, judge_change

PLACES = 300
LOUD = "s7"  # the last of eight samples


def compare(
    arrays: Mapping[str, Array],
    change: Change,
    emulate: Change,
    axes: tuple[int, ...] = (WHOLE, 1),
    precision: str = "INT8",
) -> ParityVerdict:
    return judge_change(arrays, change, build_parts(arrays, emulate, axes, precision), precision)


def add_noise(share: float) -> Change:
    """Return what rounding does to an array, relative to its own scale."""

    def change(name: str, array: Array) -> Array:
        noise = np.random.default_rng(len(name)).normal(
            0, share * array.std(dtype=np.float64), array.shape
        )
        return (array + noise).astype(np.float32)

    return change


def set_zero(*names: str) -> Change:
    return lambda name, array: np.zeros_like(array) if name in names else array


def make_loud(width: int = 40) -> dict[str, Array]:
    """Return eight samples of [1, width, 1, 1], the last of which is 400 times as loud as the others."""
    random = np.random.default_rng(3)
    arrays = {
        f"s{index}": random.uniform(1, 4, (1, width, 1, 1)).astype(np.float32) for index in range(8)
    }
    arrays[LOUD] *= 400
    return arrays


QUIET = tuple(f"s{index}" for index in range(7))


@pytest.mark.parametrize("precision", ["INT8", "FP8"])
@pytest.mark.parametrize("width", [40, 1])
def test_output_that_is_dead_in_all_samples_but_a_loud_one_fails(
    width: int, precision: str
) -> None:
    # fault: one loud sample takes the range of INT8 for itself, and the outputs of all others are dead
    verdict = compare(
        make_loud(width), set_zero(*QUIET), lambda _, array: array * np.float32(1.01),
        (WHOLE,), precision,
    )  # fmt: skip
    assert "as a whole in 7 of 8 samples, each by its own scale" in str(verdict.description)
    assert verdict.worst is not None
    assert verdict.worst.sample in QUIET


def test_output_that_is_dead_in_fewer_than_half_of_the_samples_agrees() -> None:
    halves = ("s0", "s1", "s2", "s3")
    assert compare(make_loud(), set_zero(*halves), add_noise(0.01), (WHOLE,)).agrees
    assert not compare(make_loud(), set_zero(*QUIET[:5]), add_noise(0.01), (WHOLE,)).agrees


def test_output_that_rounding_costs_as_much_in_most_samples_agrees() -> None:
    assert compare(make_loud(), set_zero(*QUIET), set_zero(*QUIET)).agrees


def test_errors_as_small_as_those_of_a_zero_output_agree_beside_a_loud_sample() -> None:
    # fault: a voice detector is refused for the silence in most of its samples
    arrays = {name: array * np.float32(0.005) for name, array in make_loud(1).items()}
    assert compare(arrays, set_zero(*QUIET), add_noise(0.0)).agrees


def make_boxes(count: int = 4) -> dict[str, Array]:
    """Return [1, 4, places] of a detector: left, top, right and bottom, pixels beside a grid of anchors."""
    grid = np.linspace(0, 640, PLACES)
    arrays = {}
    for seed in range(count):
        offsets = np.random.default_rng(seed).gamma(2.0, 8.0, (4, PLACES))
        offsets[:2] *= -1
        arrays[f"s{seed}"] = (grid + offsets)[None].astype(np.float32)
    return arrays


def drop_offsets(_: str, array: Array) -> Array:
    """Return boxes that are the same at all anchors, wherever the objects are."""
    grid = np.linspace(0, 640, PLACES)[: array.shape[2]]
    places: Array = grid + (array - grid).mean((0, 2), keepdims=True)
    return places.astype(np.float32)


def swap_sides(_: str, array: Array) -> Array:
    grid = np.linspace(0, 640, PLACES)
    sides: Array = grid - (array - grid)[:, [2, 3, 0, 1]]
    return sides.astype(np.float32)


@pytest.mark.parametrize("change", [drop_offsets, swap_sides])
def test_boxes_that_are_wrong_beside_their_anchors_fail(change: Change) -> None:
    # fault: the grid of anchors counts as movement, and hides that the boxes do not follow the objects
    verdict = compare(make_boxes(), change, lambda _, array: array + np.float32(0.5))
    assert verdict.worst is not None
    assert verdict.worst.figure == "part"
    assert "% of what the samples move it by" in str(verdict.description)


def test_boxes_that_are_off_by_what_rounding_costs_agree_and_are_judged() -> None:
    verdict = compare(make_boxes(), add_noise(0.01), add_noise(0.01))
    assert verdict.agrees
    assert verdict.outputs[0].unjudged == ()


def make_boxes_of_sizes(*sides: int) -> dict[str, Array]:
    """Return boxes [1, places, 4] at the cells of square grids, with offsets of a hundredth of them."""
    arrays = {}
    for index, side in enumerate(sides):
        cells = 8.0 * np.stack(np.divmod(np.arange(side * side), side) * 2, 1)
        offsets = np.random.default_rng(index).normal(0, 1.0, cells.shape)
        arrays[f"s{index}"] = (cells + offsets)[None].astype(np.float32)
    return arrays


def drop_from_cells(_: str, array: Array) -> Array:
    return np.rint(array / 8) * 8


def list_unjudged(verdict: ParityVerdict) -> set[int]:
    return {item.axis for item in verdict.outputs[0].unjudged}


@pytest.mark.parametrize("sides", [(8, 16, 24), (12,)])
def test_boxes_whose_samples_all_differ_in_size_are_unjudged(sides: tuple[int, ...]) -> None:
    # fault: in samples of different sizes, the grid of anchors counts as movement, and the boxes are dead
    verdict = compare(make_boxes_of_sizes(*sides), drop_from_cells, add_noise(1e-4), (WHOLE, 2))
    assert verdict.agrees
    assert list_unjudged(verdict) == {WHOLE, 2}


def test_boxes_that_are_wrong_beside_their_grid_too_fail_in_samples_that_differ_in_size() -> None:
    boxes = make_boxes_of_sizes(8, 16, 24)
    verdict = compare(boxes, lambda _, array: -array, add_noise(1e-4), (WHOLE, 2))
    assert "in index 0 of axis 2 and 3 more" in " ".join(
        failure.description for failure in verdict.failures
    )


def test_two_samples_of_one_size_tell_boxes_from_their_grid_beside_larger_ones() -> None:
    # fault: the grid of a sample of another size counts as movement, and the boxes are dead
    boxes = make_boxes_of_sizes(8, 8, 40)
    verdict = compare(boxes, drop_from_cells, add_noise(1e-4), (WHOLE, 2))
    assert "in index 0 of axis 2 and 3 more" in str(verdict.description)
    verdict = compare(boxes, add_noise(1e-4), add_noise(1e-4), (WHOLE, 2))
    assert verdict.agrees
    assert list_unjudged(verdict) == set()


def place(*sizes: tuple[int, ...]) -> list[dict[str, tuple[int, ...]]]:
    return [{"x": size} for size in sizes]


@pytest.mark.parametrize(
    ("inputs", "judged"),
    [
        (place((1, 3, 32, 32), (1, 3, 40, 40), (1, 3, 48, 48)), False),
        (place((1, 3, 64, 32), (1, 3, 64, 40), (1, 3, 64, 48)), True),  # a line of text
        (place((1, 3, 64, 8), (1, 3, 64, 10), (1, 3, 64, 12)), False),  # more than its steps
        (place((1, 32), (1, 32), (1, 32)), True),  # as many as are found
        ([{"x": (1, size), "y": (size,)} for size in (16, 25, 36)], True),  # a text and its mask
        ([{"x": (1, size), "y": (1, 2 * size)} for size in (16, 25, 36)], False),
        ([], False),
    ],
)
def test_sequences_and_lists_of_any_size_have_no_grid(
    inputs: list[dict[str, tuple[int, ...]]], *, judged: bool
) -> None:
    # fault: texts, which all differ in length, and detections, which do in number, are all unjudged
    builder = PartsBuilder({NAME: (WHOLE, 2)}, TYPES, Tolerances("INT8"), {})
    for index, array in enumerate(make_boxes_of_sizes(4, 5, 6).values()):
        feeds = {name: np.zeros(size) for name, size in inputs[index].items()} if inputs else None
        builder.add({NAME: array}, {NAME: array}, feeds)
    assert [part.bound.all() for part in builder.build()[NAME]] == [not judged, not judged]


def test_boxes_of_pictures_of_other_sizes_lie_elsewhere_though_they_are_as_many() -> None:
    # fault: a wide picture and a high one have as many anchors, whose places count as movement
    wide, high = (8.3 * np.stack(np.divmod(np.arange(96), side) * 2, 1) for side in (8, 12))
    arrays = [array[None].astype(np.float32) for array in (wide, high)]

    def find_bound(*others: tuple[Array, tuple[int, ...]]) -> list[bool]:
        builder = PartsBuilder({NAME: (WHOLE, 2)}, TYPES, Tolerances("INT8"), {})
        for array, size in ((arrays[0], (64, 96)), (arrays[1], (96, 64)), *others):
            builder.add({NAME: array}, {NAME: array}, {"x": np.zeros((1, *size))})
        return [bool(part.bound.any()) for part in builder.build()[NAME]]

    assert find_bound((arrays[0][:, :12], (32, 24))) == [True, True]
    assert find_bound() == [False, False], "of classes, as many of any picture"


def test_grid_that_is_all_that_differs_is_movement() -> None:
    still = {name: make_boxes(1)["s0"] for name in ("a", "b")}
    verdict = compare(still, lambda _, array: array, add_noise(0.01))
    assert verdict.outputs[0].unjudged == ()


@pytest.mark.parametrize("grid", [True, False])
@pytest.mark.parametrize("rows", [True, False])
def test_movement_is_the_deviation_of_each_element_in_samples_of_its_shape(
    *, rows: bool, grid: bool
) -> None:
    random = np.random.default_rng(0)
    arrays = random.normal(0, 2, (5, 3, 700, 200)) + grid * np.arange(200)
    arrays = arrays.astype(np.float32)
    arrays[:, :, 0, 0] = [[np.nan, np.inf, 7.0]]
    alone = random.normal(90, 40, (1, 3, 700, 100)).astype(np.float32)[() if rows else 0]
    movement = Movement(rows=rows)
    movement.add(alone, "float32")
    means = np.full(3, 100.0)
    axis = int(rows)
    assert movement.is_alone()
    assert not movement.measure(axis, means).any()
    for array in (arrays[:2], arrays[2:3], arrays[3:]) if rows else arrays:
        movement.add(array, "float32")
    assert not movement.is_alone()
    total = 5 * arrays.astype(np.float64).reshape(5, 3, -1)[..., 1:].var(0).sum(1)
    count = 5 * 140_000
    if not grid:
        total += np.square(alone.astype(np.float64) - 100).reshape(3, -1).sum(1)
        count += 70_000
    np.testing.assert_allclose(movement.measure(axis, means), np.sqrt(total / count), rtol=1e-4)


@pytest.mark.parametrize("shape", [(1, 3, 1_500_000), (1, 1_500_007, 3), (3, 1500, 1000)])
def test_movement_of_a_large_output_is_that_of_every_nth_element(shape: tuple[int, ...]) -> None:
    # fault: of outputs of more than 16 million elements nothing is known, and boxes that stand still agree
    axis = shape.index(3)
    random = np.random.default_rng(0)
    scale = np.array([1.0, 20.0, 0.0]).reshape([3 if at == axis else 1 for at in range(3)])
    grid = random.normal(0, 500, shape)
    movement = Movement(rows=False)
    for _ in range(3):
        movement.add((grid + scale * random.normal(0, 1, shape[1:])).astype(np.float32), "float32")
    expected = np.sqrt(2 / 3) * scale.reshape(-1)  # of three samples
    np.testing.assert_allclose(movement.measure(axis, np.zeros(3)), expected, rtol=5e-3, atol=1e-3)
    assert movement.measure(WHOLE, np.zeros(1)) == pytest.approx(
        [np.sqrt(np.square(expected).mean())], rel=5e-3
    )


@pytest.mark.parametrize("change", [drop_offsets, swap_sides])
def test_boxes_of_a_large_output_that_are_wrong_beside_their_anchors_fail(
    change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(movement_module, "_MOST_OF_ONE", 300)
    assert not compare(make_boxes(), change, lambda _, array: array + np.float32(0.5)).agrees
    verdict = compare(make_boxes(), add_noise(0.01), add_noise(0.01))
    assert verdict.agrees
    assert verdict.outputs[0].unjudged == ()


def test_samples_with_values_that_are_none_say_nothing_of_the_others() -> None:
    # fault: one image of NaN, or a mask somewhere in each sample, and boxes that stand still agree
    boxes = make_boxes(5)
    boxes["s4"][:] = np.nan
    assert not compare(boxes, drop_offsets, add_noise(0.001)).agrees
    boxes = make_boxes(4)
    for index, array in enumerate(boxes.values()):
        array[..., index::4] = -1e4
    assert not compare(boxes, swap_sides, add_noise(0.001)).agrees


def test_element_that_has_a_value_in_one_sample_alone_is_unjudged() -> None:
    boxes = make_boxes(2)
    boxes["s0"][:, 1] = np.nan
    verdict = compare(boxes, lambda _, array: array, add_noise(0.01))
    assert verdict.agrees
    assert [(item.axis, item.indices) for item in verdict.outputs[0].unjudged] == [(1, (1,))]


def test_values_of_any_size_are_judged() -> None:
    # fault: outputs of 1e25 are infinitely far off
    boxes = {name: array * np.float32(1e25) for name, array in make_boxes().items()}
    assert compare(boxes, add_noise(1e-4), add_noise(1e-3)).agrees
    assert not compare(boxes, swap_sides, add_noise(1e-3)).agrees


def test_boxes_along_the_first_axis_of_images_that_all_differ_in_size_are_unjudged() -> None:
    # fault: anchors of one image count as the rows of a batch
    builder = PartsBuilder({NAME: (WHOLE, 1)}, TYPES, Tolerances("INT8"), {})
    for side, array in zip((8, 16, 24), make_boxes_of_sizes(8, 16, 24).values(), strict=True):
        builder.add({NAME: array[0]}, {NAME: array[0]}, {"x": np.zeros((1, 3, 8 * side, 8 * side))})
    assert [part.bound.all() for part in builder.build()[NAME]] == [True, True]


def test_samples_that_are_left_out_leave_a_grid_unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    # fault: the order of the samples decides whether boxes that stand still agree
    monkeypatch.setattr(movement_module, "_MOST", 600)
    builder = PartsBuilder({NAME: (WHOLE, 2)}, TYPES, Tolerances("INT8"), {})
    for side, array in zip((8, 9, 16, 16), make_boxes_of_sizes(8, 9, 16, 16).values(), strict=True):
        builder.add({NAME: array}, {NAME: array}, {"x": np.zeros((1, 3, side, side))})
    assert [part.bound.all() for part in builder.build()[NAME]] == [True, True]


def test_movement_of_many_large_sizes_is_that_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movement_module, "_MOST", 500)
    movement = Movement(rows=False)
    for width in (100, 100, 300, 300, 400, 400):
        movement.add(np.random.default_rng(width).normal(0, 1, (2, width)), "float64")
        movement.add(np.random.default_rng(0).normal(0, 1, (2, width)), "float64")
    assert not movement.is_alone()
    assert (movement.measure(0, np.zeros(2)) > 0.3).all()


def test_class_that_only_samples_of_other_sizes_show_is_judged_by_them() -> None:
    # fault: correct texts are refused for characters that no two samples of one size have
    texts = {}
    for index, length in enumerate((30, 30, 40, 50)):
        texts[f"s{index}"] = np.full((1, length, 3, 1), 1e-3 * index, np.float32)
        texts[f"s{index}"][0, 3 + index :: 7, 2 if length > 30 else index] = 1

    def add_some(_: str, array: Array) -> Array:
        return array + np.float32(0.01)

    verdict = compare(texts, add_some, add_some, (WHOLE, 2))
    assert verdict.agrees
    assert verdict.outputs[0].unjudged == ()


def test_boxes_of_a_batch_are_samples_of_their_anchors() -> None:
    # fault: a batch among samples of one box each hides that the boxes do not follow the objects
    boxes = make_boxes(5)
    batch = {"a": boxes["s0"], "b": np.concatenate([boxes["s1"], boxes["s2"], boxes["s3"]])}

    def drop(name: str, array: Array) -> Array:
        return np.concatenate([drop_offsets(name, row[None]) for row in array])

    assert "part" in {failure.figure for failure in compare(batch, drop, add_noise(0.001)).failures}


def make_loud_rows(width: int, rows: int = 8) -> dict[str, Array]:
    """Return batches [rows, 1, width], the first row of which is 400 times as loud as the others."""
    arrays = {}
    for index in range(3):
        array = np.random.default_rng(index).uniform(1, 4, (rows, 1, width)).astype(np.float32)
        array[0] *= 400
        arrays[f"s{index}"] = array
    return arrays


def keep_first(rows: int) -> Change:
    """Return what leaves but the first rows of a batch alive."""

    def change(_: str, array: Array) -> Array:
        array = array.copy()
        array[rows:] = 0
        return array

    return change


def add_to_rows(share: float) -> Change:
    return lambda _, array: array * np.float32(1 + share)


@pytest.mark.parametrize("precision", ["FP32", "FP16", "BF16", "INT8", "FP8"])
@pytest.mark.parametrize(("width", "count"), [(40, 3), (1, 3), (40, 1)])
def test_rows_that_are_dead_beside_a_loud_one_of_their_batch_fail(
    count: int, width: int, precision: str
) -> None:
    # fault: one loud row of a batch hides that all others are dead, in every sample
    arrays = dict([*make_loud_rows(width).items()][:count])
    verdict = compare(arrays, keep_first(1), add_to_rows(1e-4), (WHOLE,), precision)
    assert f"in most rows of {count} of {count} samples, each by its own scale" in " ".join(
        failure.description for failure in verdict.failures
    )


def test_rows_agree_where_fewer_than_half_are_dead_or_rounding_costs_as_much() -> None:
    arrays = make_loud_rows(40)
    rounding = add_to_rows(1e-2)
    assert compare(arrays, keep_first(4), rounding, (WHOLE,)).agrees
    assert not compare(arrays, keep_first(3), rounding, (WHOLE,)).agrees
    assert compare(arrays, keep_first(1), keep_first(1), (WHOLE,)).agrees


def test_rows_of_zeros_say_nothing_of_the_others() -> None:
    # fault: the padding of a batch counts as rows that agree
    arrays = make_loud_rows(40, 16)
    for array in arrays.values():
        array[6:] = 0
    assert not compare(arrays, keep_first(1), add_to_rows(1e-2), (WHOLE,)).agrees
    assert compare(arrays, keep_first(4), add_to_rows(1e-2), (WHOLE,)).agrees


@pytest.mark.parametrize(("rows", "fails"), [(4000, True), (9000, False)])
def test_more_rows_than_a_batch_has_are_positions_of_one_sample(rows: int, *, fails: bool) -> None:
    # fault: a correct recording is refused for the noise in its silence
    arrays = make_loud_rows(1, rows)
    verdict = compare(arrays, keep_first(1), add_to_rows(1e-2), (WHOLE,))
    assert any("most rows" in failure.description for failure in verdict.failures) is fails


def test_rows_are_unjudged_where_they_are_lost_and_what_rounding_costs_is_not_known() -> None:
    # fault: seven of eight samples are zeros, and where rounding cannot be emulated the artefact agrees
    builder = PartsBuilder({NAME: (WHOLE,)}, TYPES, Tolerances("INT8"), {})
    arrays = make_loud()
    for array in arrays.values():
        builder.add({NAME: array}, None)
    judged = PartsJudge(builder.build())
    for name, array in arrays.items():
        judged.add(name, NAME, array, set_zero(*QUIET)(name, array), "float32")
    allowed = DEFAULTS["INT8"]
    assert judged.find_fault(NAME, allowed) is None
    assert [item.axis for item in judged.find_unjudged(NAME, allowed)] == [WHOLE]


def test_what_rounding_costs_rows_excuses_no_conversion_that_rounds_nothing() -> None:
    arrays = make_loud_rows(40)
    builder = PartsBuilder({NAME: (WHOLE,)}, TYPES, Tolerances(), {})
    for name, array in arrays.items():
        builder.add({NAME: array}, {NAME: keep_first(1)(name, array)})
    judged = PartsJudge(builder.build())
    for name, array in arrays.items():
        judged.add(name, NAME, array, keep_first(1)(name, array), "float32")
    assert judged.find_fault(NAME, DEFAULTS["FP32"]) is None
    assert judged.find_fault(NAME, ROUNDING) is not None
