"""Models of strings load in the runtime image, and in preflight wherever it runs."""

import re
from pathlib import Path

import numpy as np
import pytest
from enginewright_cli.preflight import workspace
from enginewright_cli.preflight.workspace import LOCALE_ALIASES, link_locales
from onnx import ModelProto, TensorProto, helper

from tests.support import broken_models as broken
from tests.support.preflight_runs import Desk
from tests.support.preparing import Workplace

CONTAINERFILE = Path(__file__).resolve().parents[2] / "runtime_image/Containerfile"
NAMES = [None, "en_US", "en_US.UTF-8", "C.UTF-8"]


def upper_case(locale: str | None) -> ModelProto:
    """Return what a text vectoriser of scikit-learn begins with; None: ONNX Runtime's own locale."""
    given = {} if locale is None else {"locale": locale}
    node = helper.make_node(
        "StringNormalizer",
        ["x"],
        ["y"],
        name="upper",
        case_change_action="UPPER",
        is_case_sensitive=0,
        stopwords=["the"],
        **given,
    )
    return broken.build(
        [node],
        [broken.value("x", 3, kind=TensorProto.STRING)],
        [broken.value("y", "kept", kind=TensorProto.STRING)],
    )


@pytest.fixture
def like_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the locales that the Containerfile makes, and no others."""
    (names,) = re.findall(r"for name in ([^;]*); do", CONTAINERFILE.read_text())
    assert tuple(names.split()) == LOCALE_ALIASES
    variables = link_locales(tmp_path / "locale")
    if not variables:
        pytest.skip("NOT TESTED, this machine has no C.UTF-8 where glibc keeps it")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


# fault: Commands | a model of strings uses a locale that the image lacks | `validate`; preflight
#   uses the image's locales | before anything is served
@pytest.mark.usefixtures("like_the_image")
@pytest.mark.parametrize("locale", NAMES)
def test_text_models_are_prepared(tmp_path: Path, locale: str | None) -> None:
    (tmp_path / "place").mkdir()
    place = Workplace(tmp_path / "place", in_process=True)
    np.savez(place.root / "samples/samples.npz", x=np.array(["the", "größe", "naïve ÿ"]))
    task = place.task(
        place.put("m.onnx", upper_case(locale)), samples_uri="pvc://samples/samples.npz"
    )
    place.complete(task)
    (golden,) = (place.root / "store/prepared").glob("*/golden/outputs.npz")
    with np.load(golden) as outputs:
        assert list(outputs["sample/y"]) == ["GRÖßE", "NAÏVE Ÿ"]


# fault: Commands | a model of strings uses a locale that the image lacks
@pytest.mark.usefixtures("like_the_image")
def test_a_locale_that_the_image_has_not_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    place = Workplace(tmp_path / "place", in_process=True)
    _, outcome = place.prepare(place.task(place.put("m.onnx", upper_case("de_DE.UTF-8"))))
    assert outcome.code != 0
    assert "locale de_DE.UTF-8, which upper" in outcome.message


def test_preflight_has_the_image_s_locales_on_any_machine(desk: Desk) -> None:
    code, reported = desk.run_json(
        desk.save(upper_case(None)), "--target", "cpu", "--backend", "cpu"
    )
    assert (code, reported["targets"]["cpu"]["verdict"]) == (0, "pass"), reported["findings"]


def test_without_c_utf_8_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "LOCALES", str(tmp_path / "none"))
    assert link_locales(tmp_path / "locale") == {}
    assert not (tmp_path / "locale").exists()
