"""enginewright.toml: found, read, merged, refused in words that name the key and the remedy."""

from pathlib import Path

import pytest
from enginewright_cli.preflight.config import (
    NAME,
    ConfigError,
    Configuration,
    ModelEntry,
    ModelOptions,
    find,
)
from enginewright_cli.preflight.schema import descriptions

WHOLE = """
[defaults]
targets = ["cpu", "sm89"]
precision = "FP16"
budget = "compute=2%,nodes=5%"
runtime_version = "1.24"

[[models]]
path = "vision/*.onnx"
shapes = ["images=1x3x64x64:8x3x64x64:32x3x64x64"]
samples = "samples/vision.npz"

[[models]]
path = "vision/large.onnx"
targets = ["sm89"]
budget = "allow"

[[models]]
path = "https://models.example/model.onnx"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository of models, which is the current folder."""
    for name in ("vision/small.onnx", "vision/large.onnx", "vision/notes.txt", "text/a[1].onnx"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(folder: Path, text: str) -> Configuration:
    (folder / NAME).write_text(text)
    return Configuration.read(folder / NAME)


def test_entries_that_match_win_over_defaults_the_last_one_first(folder: Path) -> None:
    models = read(folder, WHOLE).models()
    assert list(models) == [
        "vision/large.onnx",
        "vision/small.onnx",
        "https://models.example/model.onnx",
    ]
    large, small, remote = models.values()
    assert (large.targets, large.budget) == (("sm89",), "allow")
    assert (small.targets, small.budget) == (("cpu", "sm89"), "compute=2%,nodes=5%")
    assert large.shapes == small.shapes == ("images=1x3x64x64:8x3x64x64:32x3x64x64",)
    assert small.samples == str(folder / "samples/vision.npz")
    assert {model.precision for model in models.values()} == {"FP16"}
    assert (remote.samples, remote.runtime_version) == (None, "1.24")


def test_named_model_takes_its_options(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(folder, WHOLE)
    monkeypatch.chdir(folder / "vision")
    assert config.options_of("large.onnx").budget == "allow"
    assert config.options_of(str(folder / "vision/small.onnx")).shapes
    assert config.options_of("../text/a[1].onnx").targets == ("cpu", "sm89")
    assert next(iter(config.models())) == "large.onnx"


def test_typed_options_win() -> None:
    typed = ModelOptions(targets=("cpu",))
    assert typed.over(ModelOptions(targets=("sm89",), precision="FP32")) == ModelOptions(
        targets=("cpu",), precision="FP32"
    )


def test_a_name_may_hold_the_characters_of_a_glob(folder: Path) -> None:
    models = read(folder, '[[models]]\npath = "text/a[1].onnx"\n').models()
    assert list(models) == ["text/a[1].onnx"]


def test_it_is_found_upwards(folder: Path) -> None:
    assert find(folder / "vision") is None
    read(folder, WHOLE)
    assert find(folder / "vision") == folder / NAME
    (folder / "vision" / NAME).write_text("")
    assert find(folder / "vision") == folder / "vision" / NAME


@pytest.mark.parametrize(
    ("text", "wording"),
    [
        ("[default]", "default is not a known key; did you mean defaults?"),
        ("[defaults]\ntarget = []", "defaults.target is not a known key; did you mean targets?"),
        (
            "[defaults]\nruntime-version = '1'",
            "defaults.runtime-version is not a known key; did you mean runtime_version?",
        ),
        (
            '[[models]]\npath = "a.onnx"\nzzz = 1',
            "models[0].zzz is not a known key; known keys: targets, backend, precision,",
        ),
        ("[[models]]\nbudget = 'allow'", 'models[0].path is missing; write path = "models/*.onnx"'),
        (
            '[defaults]\ntargets = "cpu"',
            'defaults.targets must be a list; write a list, such as ["cpu"',
        ),
        ('[models]\npath = "a.onnx"', "models must be a list; write it as [[models]]"),
        (
            '[defaults]\ntargets = ["gpu"]',
            "defaults.targets[0]: 'gpu' is not a target; did you mean cpu?",
        ),
        ('[defaults]\nbudget = "2%"', "write allow, or shares such as compute=2%,nodes=5%"),
        ('[defaults]\nprecision = "FP4"', "write one of FP32, FP16"),
        ('[defaults]\nshapes = ["x"]', "write INPUT=MIN:OPT:MAX"),
        (
            "[defaults]\ntarget_opset = 'x'",
            "defaults.target_opset: input should be a valid integer",
        ),
        (
            "[defaults",
            "is not valid TOML: Expected ']' at the end of a table declaration (at end of",
        ),
    ],
)
def test_unknown_option_is_refused(folder: Path, text: str, wording: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(folder, text)
    assert wording in str(refused.value)
    assert str(folder / NAME) in str(refused.value)


def test_a_glob_that_matches_nothing_is_refused(folder: Path) -> None:
    config = read(folder, '[[models]]\npath = "audio/*.onnx"\n')
    with pytest.raises(ConfigError, match=r"models\[0\]\.path: 'audio/\*\.onnx' matches no file"):
        config.models()
    with pytest.raises(ConfigError, match=r"lists no models; add a table \[\[models\]\]"):
        read(folder, "").models()


def test_every_field_is_documented() -> None:
    """Field by field, with the words of the class."""
    text = (Path(__file__).parents[2] / "docs/reference/commands.md").read_text()
    fields = {**descriptions(ModelOptions), **descriptions(ModelEntry)}
    assert set(fields) == {*ModelOptions.model_fields, *ModelEntry.model_fields}
    for name, wording in fields.items():
        assert f"| `{name}` | {wording.removesuffix('.')}" in text, name
