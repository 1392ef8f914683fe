"""Remedies of preflight can be followed where they are read: they name its options, and no object of a cluster."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from enginewright_cli.preflight.arguments import PreflightArguments
from enginewright_cli.preflight.remedies import _OPTIONS, _WITHOUT_CREDENTIALS, advise, translate
from enginewright_contract.reasons import Reason
from enginewright_contract.report import Finding
from enginewright_runtime.rules import table
from enginewright_runtime.rules.base import Rule

RUNTIME = Path(table.__file__).parents[1]
# run by preflight, but for artefacts as images, and the store, whose failures have remedies of preflight's own
STAGES = [
    path
    for path in sorted(RUNTIME.rglob("*.py"))
    if path.relative_to(RUNTIME).parts[0] not in {"oci", "store"}
]
OF_A_CLUSTER = re.compile(
    r"\b(?:[Pp]ods?|Jobs?|kubectl|Secrets?|secretRef|AcceleratorClass|InferenceModel|InferenceEngine"
    r"|[Cc]laims?|65532|namespace|nodeSelector|PersistentVolumeClaim|ephemeral|spec\.backends"
    r"|accelerator class|podTemplate|service account)\b"
)


def list_remedies(path: Path) -> Iterator[tuple[int, Finding]]:
    """Yield the remedies that a file passes on, with their lines; X stands for what is filled in."""
    tree = ast.parse(path.read_text())
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = [item.value for item in node.keywords if item.arg == "remedy"]
        if getattr(node.func, "id", "") in {"unreachable", "Unfit"}:
            given += node.args[1:2]
        reasons = [item.value for item in node.keywords if item.arg == "reason"] + node.args[:1]
        reason = next((item.attr for item in reasons if isinstance(item, ast.Attribute)), "")
        for text in (text for value in given for text in read(value, constants)):
            named = Reason.__members__.get(reason, Reason.INVALID_MODEL)
            yield node.lineno, Finding(reason=named, cause="-", remedy=text)


def read(value: ast.expr, constants: dict[str, ast.expr]) -> Iterator[str]:
    if isinstance(value, ast.Constant):
        yield str(value.value or "")
    elif isinstance(value, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "X" for part in value.values
        )
    elif isinstance(value, ast.IfExp):
        yield from read(value.body, constants)
        yield from read(value.orelse, constants)
    elif isinstance(value, ast.Name) and value.id in constants:
        yield from read(constants[value.id], constants)


def find_faults(remedy: str) -> list[str]:
    """Return words of a cluster, and fields that are not beside their option."""
    faults = OF_A_CLUSTER.findall(remedy)
    for field, option in _OPTIONS.items():
        bare = remedy.replace(f"{option} ({field})", "")
        faults += re.findall(rf"{re.escape(field)}(?![\w\[]|\.\w)", bare)
    return faults


@pytest.mark.parametrize("path", STAGES, ids=lambda path: str(path.relative_to(RUNTIME)))
def test_remedies_of_stages_are_translated_completely(path: Path) -> None:
    faults = {
        line: (finding.remedy, wrong)
        for line, finding in list_remedies(path)
        if (wrong := find_faults(advise(finding)))
    }
    assert faults == {}


def test_remedies_are_collected_from_the_stages() -> None:
    counted = sum(len([*list_remedies(path)]) for path in STAGES)
    assert counted > 60


@pytest.mark.parametrize(
    "rule",
    [rule for rule in vars(table).values() if isinstance(rule, Rule)],
    ids=lambda rule: rule.name,
)
def test_remedies_of_rules_are_translated_completely(rule: Rule) -> None:
    assert find_faults(advise(Finding(reason=rule.reason, cause="-", remedy=rule.remedy))) == []


def list_reported() -> list[Reason]:
    """Return the reasons that stages name."""
    text = "\n".join(path.read_text() for path in STAGES)
    return [reason for reason in Reason if re.search(rf"Reason\.{reason.name}\b", text)]


@pytest.mark.parametrize("reason", list_reported())
def test_the_remedy_of_a_reason_that_stages_report_can_be_followed(reason: Reason) -> None:
    finding = Finding(reason=reason, cause="-")
    for item in (finding, finding.of_container("build"), finding.of_container("verify")):
        assert find_faults(advise(item)) == []
        assert advise(item)


def test_a_remedy_of_the_findings_own_is_kept() -> None:
    assert advise(Finding(reason=Reason.BUILD_FAILED, cause="-", remedy="do this")) == "do this"


def test_each_field_has_an_option_of_the_command() -> None:
    names = {f"--{name.replace('_', '-')}" for name in vars(PreflightArguments)["__annotations__"]}
    names |= {"--extension"}  # `extensions` in the configuration
    assert {word for option in _OPTIONS.values() for word in option.split(" and ")} <= names


@pytest.mark.parametrize(
    ("remedy", "here"),
    [
        ("make the file readable for user 65532", "make the file readable"),
        (
            "choose another backend in spec.backends for accelerators of this class",
            "choose another backend with --target",
        ),
        (
            "check the credentials in secretRef (keys username, password)",
            _WITHOUT_CREDENTIALS,
        ),
        (
            table.CUSTOM_DOMAIN.remedy,
            (
                "for tokenizers and image decoders, give --extension ONNXRuntimeExtensions; a library of your own is"
                " loaded in a cluster only, where the model's spec names it, or export without them"
            ),
        ),
        ("set spec.precision to FP16", "set --precision (spec.precision) to FP16"),
        ("remove spec.quantization.rest", "remove --rest (spec.quantization.rest)"),
        (
            "add spec.quantization.calibration.preprocessing, with width and height",
            "add spec.quantization.calibration.preprocessing, with width and height",
        ),
    ],
)
def test_a_remedy_for_the_owner_of_a_resource_is_translated(remedy: str, here: str) -> None:
    assert translate(remedy) == here
