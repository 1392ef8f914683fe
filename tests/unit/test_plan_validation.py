"""Refusals without an API server: the cases, fields and sentences that a real one is tested with."""

from typing import Any

import pytest
import yaml
from enginewright.api.crds import definitions
from enginewright_cli.plan.cel import CelError, compile_rule
from enginewright_cli.plan.validation import problems, rules

from tests.apiserver import test_crd_refusals as server
from tests.apiserver import test_crd_usage as usage
from tests.support.plan_objects import make_object


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [pytest.param(*rest, id=str(w)) for w, *rest in server.BAD_MODELS],
)
def test_invalid_model_spec(change: dict[str, Any], field: str, sentence: str) -> None:
    reported = problems(server.inference_model(change))
    assert any(item.startswith(f"{field}: ") and sentence in item for item in reported), reported


@pytest.mark.parametrize(
    ("change", "field", "sentence"),
    [pytest.param(*rest, id=str(w)) for w, *rest in server.BAD_CLASSES],
)
def test_invalid_class_spec(change: dict[str, Any], field: str, sentence: str) -> None:
    base = {"nodeSelector": {"a": "b"}, "backends": ["cpu"]}
    reported = problems(make_object("AcceleratorClass", "l4", spec=server.merge(base, change)))
    assert any(item.startswith(f"{field}: ") and sentence in item for item in reported), reported


@pytest.mark.parametrize("name", server.BAD_NAMES)
def test_a_name_that_cannot_be_a_services_is_refused(name: str) -> None:
    assert any(
        problem.startswith("metadata.name: ")
        for problem in problems(server.inference_model({}, name))
    )


def test_every_field_is_accepted() -> None:
    assert problems(yaml.safe_load(usage.EVERYTHING)) == []
    assert problems(server.inference_model({})) == []


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"sorce": {}}, "spec.sorce: unknown field; did you mean source?"),
        ({"rollout": {"cannary": {}}}, "spec.rollout.cannary: unknown field; did you mean canary?"),
        (
            {"shapes": [{"input": "x", "min": [1], "opt": [1], "max": [1], "Range": {}}]},
            "spec.shapes[0].Range: unknown field; did you mean range?",
        ),
        (
            {"build": {"zzz": 1}},
            "spec.build.zzz: unknown field; known fields: workspace, optimizationLevel,",
        ),
    ],
)
def test_an_unknown_field_is_named_with_the_nearest(change: dict[str, Any], reported: str) -> None:
    (wording,) = problems(server.inference_model(change))
    assert wording.startswith(reported)


def test_free_forms_and_labels_may_hold_anything() -> None:
    template = {"affinity": {"nodeAffinity": {"x": [1]}}, "labels": {"team": "vision"}}
    assert problems(server.inference_model({"podTemplate": template})) == []


def test_invalid_object_is_refused() -> None:
    assert problems({"kind": "InferenceModel", "apiVersion": "v1", "metadata": None}) == [
        "apiVersion: write enginewright.dev/v1alpha1",
        "metadata.name: write lowercase letters, digits, '-' and '.'",
    ]
    (reported,) = problems(make_object("InferenceModel", "a", spec=None))  # as users may
    assert reported == "spec: Required value"
    (reported,) = problems(make_object("InferenceModel", "a", spec=[]))  # as users may
    assert reported == "spec: must be of type object, not array"


def test_every_rule_can_be_evaluated_here() -> None:
    """A rule that uses more of CEL than is known here fails this test, not a user's plan."""
    messages = [
        rule
        for definition in definitions().values()
        for rule in rules(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    ]
    assert len(messages) > 40
    for rule in messages:
        compile_rule(rule["rule"])
        if "messageExpression" in rule:
            compile_rule(rule["messageExpression"])


@pytest.mark.parametrize(
    ("rule", "value", "expected"),
    [
        ("self.all(i, x, x >= i)", [0, 1, 2], True),
        ("self.all(i, x, x > i)", [1, 1], False),
        ("{'a': 1}[self] == 1", "a", True),
        ("self.filter(x, x.contains('b')).size() == 1", ["a", "abc"], True),
        ("self.matches('^[a-z]+$')", "abc\n", False),
        ("quantity(self).compareTo(quantity('1500m')) > 0", "1.6", True),
        ("quantity(self).compareTo(quantity('9007199254740992')) > 0", "9007199254740993", True),
        ("isQuantity(self)", "4Gib", False),
        ("isQuantity(self)", "1e3Mi", False),
        ("isQuantity(self)", "1..2", False),
        ("isQuantity(self)", "1e9999999999999999999", False),
        ("quantity(self).compareTo(quantity('1000n')) == 0", "1u", True),
        ("quantity(self).compareTo(quantity('1u')) > 0", "1E", True),
        ("duration(self) < duration('1h')", "59m", True),
        ("type(self) == int ? self >= 0 : isQuantity(self)", 3, True),
        ("!format.dns1123Label().validate(self).hasValue()", "a.b", False),
        ("!format.dns1123Subdomain().validate(self).hasValue()", "a.b", True),
        ("!format.qualifiedName().validate(self).hasValue()", "example.com/Note_1", True),
        ("!format.labelValue().validate(self).hasValue()", "-x", False),
    ],
)
def test_the_language(rule: str, value: Any, expected: bool) -> None:
    assert compile_rule(rule)(value) is expected


@pytest.mark.parametrize(
    "rule", ["self.b", "self[3]", "double(self.a)", "self < 1", "quantity(self.a) == ''"]
)
def test_expression_without_a_value_is_an_error(rule: str) -> None:
    with pytest.raises(CelError):
        compile_rule(rule)({"a": "x"})


@pytest.mark.parametrize("rule", ["self.find('a')", "now()", "other", "self +", ""])
def test_unknown_field_is_refused(rule: str) -> None:
    with pytest.raises(CelError):
        compile_rule(rule)
