"""The sidecar's metrics as they are exposed."""

import pytest
from enginewright_serving.sidecar.exposition import Exposition, Family
from prometheus_client.parser import text_string_to_metric_families


@pytest.mark.parametrize("label", ['quote"', "back\\slash", "new\nline", "grüß"])
def test_label_values_survive(label: str) -> None:
    text = Exposition({"model": label})
    text.family(Family("a_b", "About.", ("c",)), [({"c": label}, 1.5)])
    (family,) = text_string_to_metric_families(text.text().decode())
    (sample,) = family.samples
    assert (sample.labels, sample.value) == ({"model": label, "c": label}, 1.5)


@pytest.mark.parametrize(
    ("other", "passed"),
    [
        (b"x 1\n", ["x 1"]),
        (b"x 1", ["x 1"]),
        (b"x 1\n# EOF\n", ["x 1"]),
        (b'# HELP x A "b".\n# TYPE x counter\nx_total{} 1\n', None),
        (b'x{a="b",c="d\\"}e",} 1.5e+06 1700000000000\nx{a=""} -Inf\nx NaN\n', None),
        (b"{{{\n", []),
        (b"null", []),
        (b"x{a=b} 1\nx 1 2 3\nx\ny{ 1\nz 1.x\ny 1.2.3\nok 2\n", ["ok 2"]),
        (b"\xff 1\nx 1\n", []),
    ],
)
def test_valid_expositions_are_appended(other: bytes, passed: list[str] | None) -> None:
    text = Exposition({})
    text.family(Family("a", "About."), [({}, 1)])
    whole = text.text(other).decode()
    lines = whole.splitlines()[3:]
    assert lines == (other.decode().splitlines() if passed is None else passed)
    assert whole.endswith("\n")
    list(text_string_to_metric_families(whole))
