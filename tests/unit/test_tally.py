"""A tally of clients finds a request that a server counts twice, not at all, or under another status."""

import json
from collections import Counter
from typing import Any

import pytest

from tests.support.tally import Counts, Tally

LABELS = 'model="m",revision="r"'


def make_counts(requests: dict[int, int], copies: dict[int, int], **changes: int) -> Counts:
    total = sum(requests.values())
    lines = [
        f'enginewright_requests_total{{code="{status}",{LABELS}}} {count}'
        for status, count in requests.items()
    ]
    lines += [
        f'enginewright_shadow_requests_total{{code="{status}",{LABELS}}} {count}'
        for status, count in copies.items()
    ]
    for name in ("duration_seconds", "bytes"):
        lines.append(f"enginewright_request_{name}_count{{{LABELS}}} {changes.get(name, total)}")
    lines.append(f"enginewright_response_bytes_count{{{LABELS}}} {total}")
    ended = {"success": {"count": requests.get(200, 0)}}
    failed = total - requests.get(200, 0) + changes.get("failed", 0)
    statistics = {"model_stats": [{"inference_stats": {**ended, "fail": {"count": failed}}}]}
    return Counts.read("\n".join(lines) + "\n", statistics)


BEFORE = make_counts({200: 5, 400: 1}, {200: 2})
SENT = Tally(
    answered=Counter({200: 3, 504: 1}),
    left=2,
    unsure=1,
    copies=Counter({200: 1}),
)


@pytest.mark.parametrize(
    "requests",
    [
        {200: 10, 400: 1, 504: 1},
        {200: 8, 400: 1, 504: 1, 499: 2},
        {200: 8, 400: 1, 504: 1, 499: 3},
    ],
    ids=["left in time", "left", "all"],
)
def test_every_request_counted_once_is_right(requests: dict[int, int]) -> None:
    assert not SENT.list_miscounts(BEFORE, make_counts(requests, {200: 3}))


@pytest.mark.parametrize(
    ("requests", "copies", "changes", "wrong"),
    [
        ({200: 9, 400: 1, 504: 1}, {200: 3}, {}, ["requests: 5, not 6 to 7"]),
        ({200: 12, 400: 1, 504: 1}, {200: 3}, {}, ["requests: 8, not 6 to 7"]),
        (
            {200: 11, 400: 1},
            {200: 3},
            {},
            ["requests with status 504: 0, of at least 1"],
        ),
        ({200: 10, 400: 1, 504: 1}, {200: 4}, {}, ["copies: 2, not 1 to 1"]),
        (
            {200: 10, 400: 1, 504: 1},
            {200: 3},
            {"bytes": 11},
            ["enginewright_request_bytes_count: 5, of 6 requests"],
        ),
        (
            {200: 10, 400: 1, 504: 1},
            {200: 3},
            {"failed": 1},
            ["statistics: 7, of 6 requests"],
        ),
    ],
    ids=["lost", "twice", "another status", "copies", "bytes", "statistics"],
)
def test_other_counts_are_found(
    requests: dict[int, int], copies: dict[int, int], changes: dict[str, Any], wrong: list[str]
) -> None:
    assert SENT.list_miscounts(BEFORE, make_counts(requests, copies, **changes)) == wrong


def test_tallies_add_up_and_survive_their_document() -> None:
    together = Tally(unsure_copies=1, wrong=["not its own"])
    together.add(SENT)
    together.add(SENT)
    assert (together.answered, together.left) == (Counter({200: 6, 504: 2}), 4)
    assert Tally.read(json.loads(json.dumps(together.write()))) == together
