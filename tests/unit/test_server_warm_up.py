"""Which sizes run before the model is ready."""

import numpy as np
from enginewright_contract.task import ShapeProfile
from enginewright_serving.server.protocol.decode import Feeds
from enginewright_serving.server.startup.warm_up import profile_points, step_points


def profile(name: str, low: list[int], usual: list[int], high: list[int]) -> ShapeProfile:
    return ShapeProfile(input=name, min=tuple(low), opt=tuple(usual), max=tuple(high))


def sizes(points: list[tuple[str, Feeds]]) -> list[tuple[str, dict[str, tuple[int, ...]]]]:
    return [(label, {name: feed.shape for name, feed in feeds.items()}) for label, feeds in points]


X = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}


def test_corners_that_no_golden_sample_has() -> None:
    points = profile_points([X], [[profile("x", [1, 3], [2, 3], [4, 5])]])
    assert sizes(list(points)) == [
        ("the min shapes", {"x": (1, 3)}),
        ("the max shapes", {"x": (4, 5)}),
    ]


def test_rows_between_the_corners_in_the_usual_sizes_largest_first() -> None:
    points = step_points([X], [[profile("x", [1, 3], [3, 4], [9, 5])]])
    assert sizes(points) == [(f"{rows} rows", {"x": (rows, 4)}) for rows in (8, 4, 2, 1)]


def test_values_come_from_a_golden_sample() -> None:
    (_, feeds), *_ = step_points([X], [[profile("x", [4, 3], [4, 3], [5, 3])]])
    assert feeds["x"].ravel().tolist() == [0, 1, 2, 3, 4, 5] * 2


def test_warmed_shapes_do_not_run_again() -> None:
    twice = profile("x", [1, 3], [2, 3], [4, 3])
    points = step_points([X], [[twice], [twice]])
    assert [label for label, _ in points] == ["4 rows", "1 rows"]


def test_only_inputs_with_the_same_rows_change() -> None:
    feeds: Feeds = {"x": np.ones((1, 3)), "mask": np.ones((1, 3)), "state": np.ones((2, 1))}
    inputs = [
        profile("x", [1, 3], [1, 3], [2, 3]),
        profile("mask", [1, 3], [1, 3], [2, 3]),
        profile("state", [2, 1], [2, 1], [2, 2]),
    ]
    assert sizes(step_points([feeds], [inputs])) == [
        ("2 rows", {"x": (2, 3), "mask": (2, 3), "state": (2, 1)})
    ]


def test_a_model_of_one_size_has_no_steps() -> None:
    assert step_points([X], [[profile("x", [2, 3], [2, 3], [2, 9])]]) == []
    assert step_points([X], [[]]) == []
    assert step_points([{"x": np.array(1.0)}], [[profile("x", [], [], [])]]) == []


def test_the_number_of_steps_is_limited() -> None:
    x: Feeds = {"x": np.ones((1, 1), np.int8)}
    points = step_points([x], [[profile("x", [1, 1], [1, 1], [1 << 30, 1])]])
    assert len(points) == 15
    assert points[0][0] == "32768 rows"
