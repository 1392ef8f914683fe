"""Which rewriting of our values by the API server is a difference and which is not."""

from typing import Any

import pytest
from enginewright.controller.drift import holds
from hypothesis import given
from hypothesis import strategies as st

TEXT = st.text("a 10.mKi", max_size=5)  # words and quantities
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("intent", "observed"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"cpu": "1000m"}, {"cpu": "1"}),
        ({"cpu": "0.5"}, {"cpu": "500m"}),
        ({"memory": "1024Mi"}, {"memory": "1Gi"}),
        ({"memory": 1073741824}, {"memory": "1Gi"}),
        ({"size": "1e3"}, {"size": "1k"}),
        ({"value": ""}, {}),
        ({"items": []}, {}),
        ({"readOnly": False}, {}),
        ({"maxSurge": 0}, {}),
        ({"emptyDir": {}}, {"emptyDir": {}}),
        # a defaulted field, another writer's container, another order
        (
            {"containers": [{"name": "a", "image": "i"}]},
            {
                "containers": [
                    {"name": "b"},
                    {"name": "a", "image": "i", "imagePullPolicy": "Always"},
                ]
            },
        ),
        (
            {"ports": [{"containerPort": 80}]},
            {"ports": [{"containerPort": 80, "protocol": "TCP"}]},
        ),
        ({"args": ["a", "b"]}, {"args": ["a", "b"]}),
    ],
)
def test_holds(intent: dict[str, Any], observed: dict[str, Any]) -> None:
    assert holds(intent, observed)


@pytest.mark.parametrize(
    ("intent", "observed"),
    [
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {}),
        ({"digits": "1" * 40}, {"digits": "1" * 39 + "2"}),
        ({"cpu": "1000m"}, {"cpu": "2"}),
        ({"memory": "1Gi"}, {"memory": "1G"}),
        ({"on": True}, {"on": False}),
        ({"image": "a:1"}, {"image": "a:2"}),
        ({"containers": [{"name": "a"}]}, {"containers": [{"name": "b"}]}),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}),
        ({"args": ["a"]}, {"args": ["a", "b"]}),
        ({"selector": {"x": "y"}}, {"selector": "x=y"}),
        ({"command": ["a"]}, {"command": "a"}),
    ],
)
def test_drifted(intent: dict[str, Any], observed: dict[str, Any]) -> None:
    assert not holds(intent, observed)


@given(JSON, JSON)
def test_more_fields_never_matter(value: Any, more: Any) -> None:
    assert holds({"ours": value}, {"ours": value, "theirs": more})
