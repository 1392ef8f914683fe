"""What every command has: help, completion, suggestions, one exit code for wrong usage, and lines that stay whole."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from enginewright_cli import app, output
from rich.text import Text

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_with(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["enginewright", *arguments])
        code = app.run()
        out, wording = capsys.readouterr()
        return code, out, wording

    return run_with


@pytest.mark.parametrize("command", ["", "preflight", "plan", "status", "store", "store gc"])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help(run: Run, command: str, option: str) -> None:
    code, out, _ = run(*command.split(), option)
    assert code == 0
    assert out.startswith(f"Usage: {' '.join(['enginewright', *command.split()])}")
    assert "bool" not in out
    assert "..." not in out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("arguments", "wording"),
    [
        ("preflght model.onnx", "did you mean preflight?"),
        ("store lss /store", "did you mean ls?"),
        ("nothing", "write one of"),
        ("preflight model.onnx --tarets cpu", "--target"),
        ("status", "NAME"),
        ("preflight model.onnx --target=", "--target is empty; write a value"),
        ("plan -f x --offline --facts y", "give --offline or --facts, not both"),
    ],
)
def test_wrong_usage_says_what_to_write(run: Run, arguments: str, wording: str) -> None:
    code, out, said = run(*arguments.split())
    assert (code, out) == (64, "")
    assert wording in said


@pytest.mark.parametrize(
    "typed",
    [
        ("preflight", "model.onnx", "--target", ""),
        ("preflight", " "),
        ("status", "m", "-n", ""),
        ("upload", "m", ""),
    ],
)
def test_an_empty_value_is_none(run: Run, typed: tuple[str, ...]) -> None:
    """As of a variable of the shell that is not set."""
    code, out, said = run(*typed)
    assert (code, out, "is empty; write a value" in said) == (64, "", True)


@pytest.mark.parametrize(
    "typed",
    [
        "describe GONE",
        "migrate GONE",
        "serve GONE",
        "upload GONE s3://models/m.onnx",
        "engine inspect GONE",
        "store ls GONE",
        "store gc GONE --keep-none --max-size 0",
    ],
)
def test_a_file_that_is_not_there_is_wrong_usage(run: Run, tmp_path: Path, typed: str) -> None:
    gone = tmp_path / "gone.onnx"
    code, out, said = run(*typed.replace("GONE", str(gone)).split())
    assert (code, out) == (64, "")
    assert f"{gone}: no such file" in said


@pytest.mark.parametrize("command", ["preflight", "serve"])
@pytest.mark.parametrize(
    ("folder", "typed"),
    [("my models", "'my models'/*.onnx"), ("deep", "deep/c/*.onnx deep/d/*.ONNX")],
)
def test_a_folder_of_several_models_says_what_to_type(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, folder: str, typed: str
) -> None:
    for name in ("my models/a.onnx", "my models/b.onnx", "deep/c/m.onnx", "deep/d/m.ONNX"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    code, out, said = run(command, folder)
    assert (code, out) == (64, "")
    assert f"name one of them, or all: enginewright preflight {typed}\n" in said


def test_completion(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_ENGINEWRIGHT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "enginewright pref")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        run()
    assert capsys.readouterr().out.split() == ["preflight"]


def test_a_pipe_gets_whole_lines() -> None:
    table = output.table("NAME", "WHY")
    table.add_row("a", "long " * 100)
    shown = output.render(lambda console: console.print(table, Text("words " * 100)))
    assert [line.split(" ")[0] for line in shown.splitlines()] == ["NAME", "a", "words"]
    assert all(line == line.rstrip() for line in shown.splitlines())
