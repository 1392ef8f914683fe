"""Chooses the sizes that run before the model is ready, so that no request is the first of its size. Pure.

Their values are those of golden inputs, repeated, so that indices stay valid.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from enginewright_contract.task import ShapeProfile

from enginewright_serving.server.protocol.decode import Feeds

_MOST_STEPS: Final = 16  # of one profile: 1 to 32,768 rows


def profile_points(
    feeds_run: Sequence[Feeds], profiles: Iterable[Iterable[ShapeProfile]]
) -> Iterator[tuple[str, Feeds]]:
    """Yield label and inputs, from the first of `feeds_run`, for the profiles' shapes that have not run."""
    seen = {_shapes(feeds) for feeds in feeds_run}
    for inputs, corner in itertools.product(profiles, ("min", "opt", "max")):
        shapes = {profile.input: getattr(profile, corner) for profile in inputs}
        feeds = _resize(feeds_run[0], shapes)
        if _shapes(feeds) not in seen:
            seen.add(_shapes(feeds))
            yield f"the {corner} shapes", feeds


def step_points(
    feeds_run: Sequence[Feeds], profiles: Iterable[Iterable[ShapeProfile]]
) -> list[tuple[str, Feeds]]:
    """Return a label and inputs of 1, 2, 4, … rows within each profile, likewise, largest first.

    Rows are the first dimension of all inputs in which it is as dynamic as in the first; the other
    dimensions are those of the opt shapes. The largest first, so that memory grows once.
    """
    seen = {_shapes(feeds) for feeds in feeds_run}
    points: list[tuple[str, Feeds]] = []
    for inputs in profiles:
        dynamic = {
            input_.input: (input_.min[0], input_.max[0])
            for input_ in inputs
            if input_.min and input_.min[0] < input_.max[0]
        }
        if not dynamic:
            continue
        low, high = bounds = next(iter(dynamic.values()))
        for power in reversed(range(_MOST_STEPS)):
            rows = 1 << power
            if not low <= rows <= high:
                continue
            shapes = {
                input_.input: (rows, *input_.opt[1:])
                if dynamic.get(input_.input) == bounds
                else input_.opt
                for input_ in inputs
            }
            feeds = _resize(feeds_run[0], shapes)
            if _shapes(feeds) not in seen:
                seen.add(_shapes(feeds))
                points.append((f"{rows} rows", feeds))
    return points


def _resize(feeds: Feeds, shapes: dict[str, tuple[int, ...]]) -> Feeds:
    return feeds | {name: np.resize(feeds[name], shape) for name, shape in shapes.items()}


def _shapes(feeds: Feeds) -> frozenset[tuple[str, tuple[int, ...]]]:
    return frozenset((name, array.shape) for name, array in feeds.items())
