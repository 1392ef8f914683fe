"""JUnit's XML: what Jenkins' schema allows, and what a pipeline shows of it.

What of it starts something: the rest is in tests/unit.
"""

from tests.support.preflighting import Preflighted
from tests.unit.test_preflight_junit import read


def test_a_real_run(rendered: Preflighted, refused: Preflighted) -> None:
    (suite,) = read((rendered.folder / "junit.xml").read_text())
    (case,) = suite
    assert (suite.get("failures"), case.get("name")) == ("0", "cpu")
    assert float(case.get("time", "")) > 0
    assert "converted opset 11 to 17" in case.findtext("system-out", "")
    (case,) = read((refused.folder / "junit.xml").read_text())[0]
    failure = case.find("failure")
    assert failure is not None
    assert failure.get("type") == refused.result.targets["cpu"].reason
    assert "remedy: " in (failure.text or "")
