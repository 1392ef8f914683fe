"""The rule on language reports violations, and accepts plain code."""

import pytest

from hack.language import judge


@pytest.mark.parametrize(
    ("text", "rule", "name"),
    [
        ("def built(): ...", "function", "built"),
        ("class A:\n    async def _described(self): ...", "function", "_described"),
        ("def run():\n    def asked(): ...", "function", "asked"),
        ("found = 1", "variable", "found"),
        ("for each in (): ...", "variable", "each"),
        ("def run(*, known): ...", "variable", "known"),
        ("[wanted for wanted in ()]", "variable", "wanted"),
        ("x = 1  # None: not measured", "sentinel", "None: …"),
        ('def run():\n    """Return it; None: not yet."""', "sentinel", "None: …"),
        ("# it is quantised", "phrase", "quantis"),
        ("# nobody reads it", "phrase", "nobody"),
        ("# refused, for it is\n# late", "phrase", ", for it is"),
    ],
)
def test_a_violation_is_reported(text: str, rule: str, name: str) -> None:
    (finding,) = judge(text, "a.py")
    assert (finding.rule, finding.name) == (rule, name)


@pytest.mark.parametrize(
    "text",
    [
        "def seed(): ...",
        "def needs_a_device(): ...",
        "class A:\n    @property\n    def taken(self): ...",
        "@pytest.fixture\ndef served(): ...",
        "class A(B):\n    @override\n    def closed(self): ...",
        "x.found = f(known=1)",
        "x: dict[None: 3]",
        "# such as these; for each of them",
        "assert 'dequantised 2 bias nodes in 32-bit integers' in published.changes",
    ],
)
def test_plain_code_is_accepted(text: str) -> None:
    assert [*judge(text, "a.py")] == []
