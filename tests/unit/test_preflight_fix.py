"""`--fix`: what it writes is what would serve, whole or not at all, over nothing of anybody else's."""

import errno
import hashlib
import os
import resource
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from enginewright_cli.preflight import fix, options, outfile
from enginewright_cli.preflight.fix import ChangeLog
from enginewright_cli.preflight.options import OptionError, option, suggest
from enginewright_cli.preflight.outputs import Outputs
from enginewright_cli.preflight.request import PreflightRequest, local_uri
from enginewright_cli.preflight.result import ModelFacts, Parity, Result, TargetResult
from enginewright_contract.manifest import (
    ArtifactFile,
    Change,
    OutputParity,
    TensorSpec,
    UnjudgedParts,
)
from enginewright_contract.task import Promise, Recipe, ShapeProfile
from enginewright_runtime.graph import shapes

from tests.support import broken_models as broken
from tests.support.manifests import manifest
from tests.support.optional import present

KEY = "1f" * 32
WEIGHTS = np.arange(16, dtype=np.float32).tobytes()


def prepare(
    root: Path,
    *,
    weights: bytes | None = WEIGHTS,
    changes: tuple[Change, ...] = (),
    level: str | None = None,
) -> Path:
    """Return the folder of an artefact as stage `publish` leaves it."""
    folder = root / "prepared" / KEY
    (folder / "model/data").mkdir(parents=True, exist_ok=True)
    model = broken.relu() if weights is None else broken.external("./data/w.bin")
    files = {"model/model.onnx": model.SerializeToString(), "golden/inputs.npz": b"-"}
    if weights is not None:
        files["model/data/w.bin"] = weights
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    base = manifest(
        key=KEY,
        model_digest="cd" * 32,
        model="model/model.onnx",
        files=tuple(
            ArtifactFile(
                path=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content)
            )
            for name, content in files.items()
        ),
        versions={"onnx": "1.23.2"},
        changes=changes,
        graph_optimization=level,
    )
    (folder / "manifest.json").write_text(base.to_json())
    return folder


def result(*verdicts: str) -> Result:
    """Return a result with a target for each verdict."""
    return Result.model_validate(
        {
            "verdict": "warn",
            "source": "source.onnx",
            "model": ModelFacts(digest="cd" * 32, size_bytes=100),
            "targets": {
                f"t{index}": TargetResult.model_validate(
                    {"verdict": verdict, "backend": "cpu", "prepared_key": KEY}
                )
                for index, verdict in enumerate(verdicts)
            },
        }
    )


def write(out: Path, root: Path, *verdicts: str) -> ChangeLog | None:
    fix.check(out, "source.onnx")
    return fix.write(out, result(*(verdicts or ("pass",))), lambda key: root / "prepared" / key)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the kernel refuse to make a file larger than this, as a full disk would.

    Modules that are imported meanwhile would be cached cut off (https://github.com/python/cpython/issues/126606).
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes_bytecode, sys.dont_write_bytecode = not sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = not writes_bytecode


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def test_a_model_without_changes_is_copied_and_said_to_be(tmp_path: Path, place: Path) -> None:
    source = prepare(tmp_path, weights=None) / "model/model.onnx"
    log = present(write(place / "out.onnx", tmp_path))
    assert (place / "out.onnx").read_bytes() == source.read_bytes()
    assert "no changes were necessary: it is a copy of the source" in fix.summary(
        log, Path("out.onnx")
    )


@pytest.mark.parametrize(("level", "said"), [("DISABLE", True), ("ALL", False), (None, False)])
def test_a_lower_level_of_optimization_is_said(
    tmp_path: Path, place: Path, level: str | None, *, said: bool
) -> None:
    prepare(tmp_path, level=level)
    log = present(write(place / "out.onnx", tmp_path))
    assert log.graph_optimization == (level if said else None)
    lines = " ".join(fix.summary(log, Path("out.onnx")))
    assert ("graph_optimization_level ORT_DISABLE_ALL" in lines) is said


def test_parts_that_the_samples_do_not_judge_are_said(tmp_path: Path, place: Path) -> None:
    prepare(tmp_path)
    log = present(write(place / "out.onnx", tmp_path))
    parts = UnjudgedParts(axis=1, indices=(4,), count=1, of=84)
    compared = OutputParity(name="y", compared_with="source", unjudged=(parts,))
    unproven = log.model_copy(update={"parity": Parity(verdict="unknown", outputs=(compared,))})
    lines = fix.summary(unproven, Path("out.onnx"))
    assert "not judged by the samples: 1 of 84 indices of axis 1 (4) of output 'y'" in lines


def test_the_first_target_that_passes_decides(tmp_path: Path, place: Path) -> None:
    prepare(tmp_path)
    log = present(write(place / "out.onnx", tmp_path, "fail", "warn", "pass"))
    assert log.target == "t1"
    assert write(place / "other.onnx", tmp_path, "fail") is None
    assert not (place / "other.onnx").exists()


def test_an_own_output_is_replaced_with_its_data(tmp_path: Path, place: Path) -> None:
    out = place / "out.onnx"
    prepare(tmp_path)
    write(out, tmp_path)
    first = tree(place)
    write(out, tmp_path)
    assert tree(place) == first
    prepare(tmp_path, weights=bytes(64))
    write(out, tmp_path)
    second = tree(place)
    assert len(second) == len(first)
    assert second != first
    prepare(tmp_path, weights=None)
    write(out, tmp_path)
    assert sorted(tree(place)) == ["out.changes.json", "out.onnx"]
    assert not (place / "out.data").exists()


@pytest.mark.parametrize("name", ["out.onnx", "out.changes.json", "out.data"])
def test_foreign_files_are_left(tmp_path: Path, place: Path, name: str) -> None:
    (place / name).write_bytes(b"precious")
    with pytest.raises(OptionError, match=r"exists and is not an unchanged output of --fix"):
        fix.check(place / "out.onnx", "source.onnx")


def test_an_output_that_was_edited_since_is_left(tmp_path: Path, place: Path) -> None:
    prepare(tmp_path)
    write(place / "out.onnx", tmp_path)
    with (place / "out.onnx").open("ab") as stream:
        stream.write(b"\x00")
    with pytest.raises(
        OptionError, match=r"is not an unchanged output of --fix; delete it or give another file"
    ):
        fix.check(place / "out.onnx", "source.onnx")


def test_the_source_is_never_written_to(place: Path) -> None:
    source = place / "model.onnx"
    source.write_bytes(broken.relu().SerializeToString())
    (place / "link.onnx").symlink_to(source)
    for out, given in ((source, source), (source, place), (place / "link.onnx", source)):
        with pytest.raises(OptionError, match=r"is the source model, which is never changed"):
            fix.check(out, str(given))
    bundle = source.rename(place / "model.pb")
    for name in ("model.pb", "other.onnx"):
        with pytest.raises(OptionError, match=r"give (another file|it another name)"):
            Outputs(html=place / name).check([str(bundle)])


@pytest.mark.parametrize(
    ("out", "wording"),
    [
        ("out.pb", "give a file that ends in .onnx"),
        ("nowhere/out.onnx", "does not exist; create it first"),
        ("folder.onnx", "is a folder; give a file"),
    ],
)
def test_unusable_place_is_reported_before_anything_runs(
    place: Path, out: str, wording: str
) -> None:
    (place / "folder.onnx").mkdir()
    with pytest.raises(OptionError, match=wording):
        Outputs(fix=place / out).check(["source.onnx"])
    with pytest.raises(OptionError, match="writes one model: give exactly one"):
        Outputs(fix=place / "out.onnx").check(["a.onnx", "b.onnx"])


def test_read_only_folder_is_reported_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a fake of what the kernel says, since root may write anywhere; the real refusal is tested next
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    for outputs in (Outputs(fix=place / "out.onnx"), Outputs(html=place / "a.html")):
        with pytest.raises(OptionError, match="is not writable; choose another one"):
            outputs.check(["source.onnx"])


def test_a_folder_that_takes_nothing_is_said(tmp_path: Path) -> None:
    prepare(tmp_path)
    (reported,) = Outputs(fix=Path("/proc/out.onnx")).save_model(
        result("pass"), lambda key: tmp_path / "prepared" / key
    )
    assert reported.failed
    assert "nothing was written" in reported.text
    (reported,) = Outputs(junit=Path("/proc/junit.xml")).save_reports([result("pass")])
    assert reported.failed
    assert reported.text.startswith("--junit /proc/junit.xml: ")


@pytest.mark.parametrize("size", [0, 40, 100, 250])
def test_full_disk_keeps_the_earlier_files(tmp_path: Path, place: Path, size: int) -> None:
    """At 0 and 40 bytes the data does not fit, at 100 the model, at 250 its log."""
    out = place / "out.onnx"
    prepare(tmp_path, weights=None)
    write(out, tmp_path)
    for before in (tree(place), {}):
        prepare(tmp_path)
        with largest_file(size):
            (reported,) = Outputs(fix=out).save_model(
                result("pass"), lambda key: tmp_path / "prepared" / key
            )
        assert reported.failed
        assert os.strerror(errno.EFBIG) in reported.text
        assert "nothing was written, existing files are unchanged" in reported.text
        assert tree(place) == before
        assert not (place / "out.data").exists()
        for path in place.iterdir():
            path.unlink()


def test_a_report_on_a_full_disk_leaves_the_earlier_one(place: Path) -> None:
    path = place / "page.html"
    path.write_text("earlier")
    with largest_file(100):
        (reported,) = Outputs(html=path).save_reports([result("pass")])
    assert reported.failed
    assert tree(place) == {"page.html": b"earlier"}


def test_a_device_is_written_to_and_not_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    outfile.write(Path("/dev/stdout"), "wording")
    assert capfd.readouterr().out == "wording"


def test_a_link_stays_a_link(place: Path) -> None:
    (place / "real.html").write_text("earlier")
    (place / "link.html").symlink_to("real.html")
    outfile.write(place / "link.html", "later")
    assert (place / "link.html").is_symlink()
    assert (place / "real.html").read_text() == "later"


@pytest.mark.parametrize("name", ["images", "my input", 'it\'s "x"', "a\\b", "$(id)", "x=1:2", "é"])
def test_missing_shapes_are_suggested_as_options_that_can_be_pasted(name: str) -> None:
    specs = [
        TensorSpec(name=name, dtype="float32", shape=("n", 3, None, None)),
        TensorSpec(name="mask", dtype="int64", shape=("n", "length")),
        TensorSpec(name="flat", dtype="int64", shape=("n",)),
    ]
    findings = [
        ShapeProfile(input=name, min=(1, 3, 32, 32), opt=(1, 3, 64, 64), max=(8, 3, 96, 96)),
        ShapeProfile(input="mask", min=(1, 0), opt=(1, 64), max=(8, 128)),
        ShapeProfile(input="flat", min=(1,), opt=(1,), max=(8,)),
    ]
    finding = shapes.missing(specs, (name, "mask"), working=findings)
    wording = [shlex.split(item) for item in suggest(finding.proposal)]
    assert [row[0] for row in wording] == ["--shapes"] * 3
    profiles = [options.shape(row[1]) for row in wording]
    assert profiles == findings, "a default batch might not go with what was found"
    resolved = shapes.resolve(specs, profiles, frozenset())
    assert not resolved.findings
    assert not resolved.unsized


def test_options_and_profiles_are_inverse() -> None:
    profile = ShapeProfile(input="x=", min=(1, 2), opt=(3, 4), max=(5, 6))
    assert options.shape(option(profile)) == profile
    empty = ShapeProfile(input="scalar", min=(), opt=(), max=())
    assert options.shape(option(empty)) == empty


def test_nothing_is_suggested_for_names_that_a_terminal_would_obey() -> None:
    spec = TensorSpec(name="x\x1b[2J", dtype="float32", shape=(None, None))
    profile = ShapeProfile(input=spec.name, min=(1, 1), opt=(1, 1), max=(1, 1))
    finding = shapes.missing([spec], (spec.name,), working=[profile])
    assert suggest(finding.proposal) == ()
    assert suggest(None) == ()
    assert finding.proposal is not None
    assert finding.proposal.yaml.isprintable()
    ranged = ShapeProfile(input="n", min=(), opt=(), max=(), low=-1, high=0.5)
    assert option(ranged) == "n=::@-1..0.5"
    assert options.shape(option(ranged)) == ranged
    assert options.shape("n=@1..640") == ranged.model_copy(update={"low": 1.0, "high": 640.0})


@pytest.mark.parametrize("text", ["n=@", "n=@1", "n=@2..1", "n=@a..b", "n=@1..2..3"])
def test_a_range_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(OptionError, match=r"such as n=@1\.\.640"):
        options.shape(text)


def test_account_in_an_address_is_not_shown() -> None:
    recipe = Recipe(backend="", ort_version="1.31.1", max_opset=26, max_ir_version=13)
    source = "oci://me:5ecret@registry.example/m:1"
    request = PreflightRequest(source=source, targets=(), recipe=recipe, promise=Promise())
    assert request.shown == "oci://registry.example/m:1"
    assert request.source == source, "which is fetched"


def test_messages_name_files_of_this_machine() -> None:
    request = PreflightRequest(
        source="/models/m.onnx",
        targets=(),
        recipe=Recipe(backend="", ort_version="1.31.1", max_opset=26, max_ir_version=13),
        promise=Promise(),
        samples=Path("/data/s.npz"),
        steps={"before-0": Path("/steps/tokens.onnx")},
    )
    assert [
        request.name_local_files(text)
        for text in (
            f"{local_uri(Path('/models/m.onnx'))} is too large",
            "claim local has no file 'm.data' there",
            f"cannot copy {local_uri(Path('/data/s.npz'), 'local-samples')}",
            "'a' leads out of claim local-samples",
            "cannot copy 'tokens.onnx' from claim before-0: Permission denied",
        )
    ] == [
        "/models/m.onnx is too large",
        "folder /models has no file 'm.data' there",
        "cannot copy /data/s.npz",
        "'a' leads out of folder /data",
        "cannot copy 'tokens.onnx' from folder /steps: Permission denied",
    ]


def test_messages_name_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    recipe = Recipe(backend="", ort_version="1.31.1", max_opset=26, max_ir_version=13)
    request = PreflightRequest(source=".", targets=(), recipe=recipe, promise=Promise())
    text = request.name_local_files(f"{local_uri(Path('mine'))} has 2 .onnx files")
    assert text == f"{tmp_path}/mine has 2 .onnx files"
