"""`enginewright store`: what is listed, what is found damaged, and the exit codes."""

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from enginewright_cli import claim_pods
from enginewright_cli.app import app
from enginewright_cli.store import claim
from enginewright_contract.collection import CollectTask
from enginewright_contract.keys import engine_key
from enginewright_contract.manifest import ArtifactFile, Manifest
from enginewright_runtime.store import ENGINE, Store
from typer.testing import CliRunner

from tests.support.manifests import engine_info
from tests.support.programs import run_program
from tests.support.source_servers import SourceServers
from tests.support.store_places import Place, no_waiting
from tests.support.store_process import FILES, manifest, publish
from tests.unit.test_store_volume import content

pytestmark = pytest.mark.timeout(900)  # the servers may have to be built first
KEYS = ("ab" * 32, "cd" * 32)


@pytest.fixture
def place(servers: SourceServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return an empty store in a bucket, whose credentials the environment has."""
    no_waiting(monkeypatch)
    servers.put_s3("store", {})
    for name, value in servers.s3().items():
        monkeypatch.setenv(name, value)
    return Place(f"s3://store/cli-{tmp_path.name}", servers.s3())


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["store", *arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    for key in KEYS:
        publish(tmp_path / "store", key, content(tmp_path / key))
    return tmp_path / "store"


@pytest.fixture
def address(place: Place, tmp_path: Path) -> str:
    for key in KEYS:
        publish(place.store(), key, content(tmp_path / f"b{key}"))
    return place.uri


@pytest.mark.parametrize("medium", ["folder", "address"])
def test_artefacts_are_listed_and_verified(medium: str, request: pytest.FixtureRequest) -> None:
    where = str(request.getfixturevalue(medium))
    listed = [json.loads(line) for line in run("ls", where, "--json").splitlines()]
    assert {(item["kind"], item["key"]) for item in listed} == {("prepared", key) for key in KEYS}
    assert all(datetime.fromisoformat(item["used"]) <= datetime.now(UTC) for item in listed)
    assert all(key in run("ls", where) for key in KEYS)
    shown = run("verify", where)
    assert f"prepared {KEYS[0]}: intact" in shown
    assert "2 artefacts, 0 damaged" in shown
    assert "1 artefact, 0 damaged" in run("verify", where, KEYS[1][:8])


def run_pod(folder: Path, *arguments: str) -> list[claim.ClaimEntry]:
    """Run what the pod runs that mounts the claim, whose volume is a folder here."""
    (container,) = claim.make_pod("ns", "claim", "image", arguments)["spec"]["containers"]
    assert container["volumeMounts"][0]["readOnly"] is True
    _, *command = (
        str(folder) if word == claim_pods.ROOT else word for word in container["command"]
    )
    return claim.order(claim.parse(run_program([sys.executable, *command]).stdout))


def test_a_claim_is_read_by_a_pod(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [json.loads(line) for line in run("ls", str(folder), "--json").splitlines()]
    entries = [entry.model_dump(mode="json", exclude_none=True) for entry in run_pod(folder)]
    assert [(item["kind"], item["key"]) for item in entries] == [
        (item["kind"], item["key"]) for item in listed
    ]
    monkeypatch.setattr(claim.ClaimedStore, "_read", lambda _, given: run_pod(folder, *given))
    assert KEYS[0] in run("ls")
    page = folder.parent / "page.html"
    run("report", "pvc://enginewright-store", KEYS[0][:6], "--html", str(page))
    assert f"Prepared model {KEYS[0][:12]}" in page.read_text()
    assert "0 artefacts whose keys" in run("report", "pvc://enginewright-store", "ff", code=2)


def test_a_report_is_shown_in_a_browser(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    shown: list[str] = []

    def show(uri: str) -> bool:
        shown.append(uri)
        return True

    monkeypatch.setattr("webbrowser.open", show)
    assert (
        run("report", str(folder), KEYS[0][:6], "--open") == f"enginewright-{KEYS[0][:12]}.html\n"
    )
    assert Path(shown[0].removeprefix("file://")).read_text().startswith("<!doctype html>")


def test_damage_is_found(folder: Path) -> None:
    (folder / "prepared" / KEYS[0] / FILES[0]).write_bytes(b"damaged")
    shown = run("verify", str(folder), code=1)
    assert f"prepared {KEYS[0]}: prepared model abababababab is damaged: file {FILES[0]}" in shown
    assert f"prepared {KEYS[1]}: intact" in shown
    assert "2 artefacts, 1 damaged" in shown
    lines = [json.loads(line) for line in run("verify", str(folder), "--json", code=1).splitlines()]
    assert [item["key"] for item in lines if item["problem"]] == [KEYS[0]]


def test_damage_in_a_bucket_is_found(address: str, place: Place) -> None:
    place.put(f"prepared/{KEYS[0]}/manifest.json", b"{")
    assert "manifest.json cannot be read" in run("verify", address, KEYS[0], code=1)


def test_an_empty_store(tmp_path: Path) -> None:
    assert run("verify", str(tmp_path)) == "0 artefacts, 0 damaged\n"


@pytest.mark.parametrize(
    ("arguments", "reported", "code"),
    [
        (("ls", "/nowhere"), "/nowhere: no such file or folder", 64),
        (("ls", "ftp://host/path"), "write s3://BUCKET/PATH", 2),
        (("verify", "STORE", "ff"), "has no artefact whose key begins with ff", 2),
    ],
)
def test_a_store_that_cannot_be_read(
    arguments: tuple[str, ...], reported: str, code: int, folder: Path
) -> None:
    placed = [str(folder) if argument == "STORE" else argument for argument in arguments]
    assert reported in run(*placed, code=code)


def test_an_artefact_is_taken_from_a_volume_to_a_bucket(
    folder: Path, place: Place, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    assert f"prepared {KEYS[0]}: exported" in run("export", str(folder), KEYS[0][:6], str(taken))
    assert f"prepared {KEYS[0]}: imported" in run("import", place.uri, str(taken))
    assert "the store has it already" in run("import", place.uri, str(taken))
    assert "1 artefact, 0 damaged" in run("verify", place.uri)
    assert place.store().find(KEYS[0]) == Store(folder).find(KEYS[0])


def test_a_folder_that_is_no_export(folder: Path, tmp_path: Path) -> None:
    assert "holds no artefact" in run("import", str(folder), str(tmp_path / "none"), code=64)
    (tmp_path / "manifest.json").write_text("{}")
    assert "is not the manifest" in run("import", str(folder), str(tmp_path), code=2)
    assert "exists already" in run("export", str(folder), KEYS[0], str(tmp_path), code=64)
    new = str(tmp_path / "new")
    assert "has 0 artefacts whose keys begin" in run("export", str(folder), "ff", new, code=2)


def test_leftovers_are_listed_and_removed(folder: Path) -> None:
    assert run("gc", str(folder)) == "0 files, 0 B left over; remove with --delete\n"
    left = folder / f"tmp/{KEYS[0]}-0123456789abcdef"
    left.mkdir()
    (left / "file").write_bytes(b"12345")
    for path in (left / "file", left):
        os.utime(path, (0, 0))
    assert f"tmp/{left.name}: 5 B\n1 file, 5 B left over" in run("gc", str(folder))
    assert left.exists()
    assert f"tmp/{left.name}: 5 B\n1 file, 5 B removed" in run("gc", str(folder), "--delete")
    assert not left.exists()
    assert "2 artefacts, 0 damaged" in run("verify", str(folder))


def test_a_folder_that_is_no_store_keeps_its_files(folder: Path, tmp_path: Path) -> None:
    """Of what is old below tmp/, only what publishers name so is theirs."""
    others = tmp_path / "others"
    (others / "thesis").mkdir(parents=True)
    for name in (f"{KEYS[0]}-x", f"{KEYS[0]}-0123456789abcdef0", "damaged-1"):
        (others / name).mkdir()
    (others / f"{KEYS[0]}-0123456789abcdef").write_text("a file")
    (others / "damaged-0123456789abcdef").symlink_to(others / "thesis")
    for path in others.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    names = sorted(path.name for path in others.iterdir())
    (folder / "tmp").rmdir()
    others.rename(folder / "tmp")
    assert "0 files, 0 B removed" in run("gc", str(folder), "--delete")
    assert sorted(path.name for path in (folder / "tmp").iterdir()) == names


def test_a_linked_folder_of_publishers_keeps_its_files(folder: Path, tmp_path: Path) -> None:
    left = tmp_path / f"others/{KEYS[0]}-0123456789abcdef"
    left.mkdir(parents=True)
    os.utime(left, (0, 0))
    (folder / "tmp").rmdir()
    (folder / "tmp").symlink_to(left.parent)
    assert "0 files, 0 B removed" in run("gc", str(folder), "--delete")
    assert left.exists()


def test_a_leftover_that_cannot_be_removed_is_not_reported_as_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = folder / f"tmp/{KEYS[0]}-0123456789abcdef"
    left.mkdir()
    os.utime(left, (0, 0))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "rmdir", refuse)
    assert "0 files, 0 B removed; 1 file stays" in run("gc", str(folder), "--delete")
    assert left.exists()


# Artefacts that nothing needs


def age(folder: Path, key: str, days: int) -> None:
    then = time.time() - days * 86_400
    os.utime(folder / "prepared" / key / "manifest.json", (then, then))


@pytest.fixture
def unused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store with two artefacts, unused for 40 and 35 days."""
    age(folder, KEYS[0], 40)
    age(folder, KEYS[1], 35)
    monkeypatch.setattr(time, "sleep", lambda _: None)  # no other process reads this store
    return folder


@pytest.fixture
def keep(tmp_path: Path) -> Path:
    path = tmp_path / "keep"
    path.write_text(f"# needed\n{KEYS[0]}  # magika\n\n{'12' * 8}\n")
    return path


@pytest.mark.parametrize("limit", [("--unused-for", "30d"), ("--max-size", "0")])
def test_unneeded_artefacts_are_listed_and_removed(
    limit: tuple[str, str], unused: Path, keep: Path
) -> None:
    listed = run("gc", str(unused), "--keep-file", str(keep), *limit)
    assert f"prepared/{KEYS[1]}: " in listed
    assert KEYS[0] not in listed
    assert "1 artefact, " in listed
    assert "left over; remove with --delete" in listed
    assert "2 artefacts, 0 damaged" in run("verify", str(unused))
    shown = run("gc", str(unused), "--keep-file", str(keep), *limit, "--delete")
    assert "1 artefact, " in shown
    assert "removed" in shown
    assert f"prepared {KEYS[0]}: intact\n1 artefact, 0 damaged" in run("verify", str(unused))


def test_artefacts_used_since_the_list_stay(unused: Path, keep: Path) -> None:
    os.utime(keep, (time.time() - 37 * 86_400,) * 2)
    shown = run("gc", str(unused), "--keep-file", str(keep), "--max-size", "0")
    assert "0 artefacts, 0 B; 0 files" in shown


def test_the_task_of_the_operators_job_is_a_list_of_keys(unused: Path, keep: Path) -> None:
    task = CollectTask(
        job="collect-1", keep=(KEYS[1][:16],), as_of=datetime.now(UTC), min_age_seconds=7200
    )
    keep.write_text(task.to_json())
    shown = run("gc", str(unused), "--keep-file", str(keep), "--unused-for", "1d12h")
    assert f"prepared/{KEYS[0]}: " in shown
    assert KEYS[1] not in shown


def test_nothing_is_needed_only_if_that_is_said(unused: Path) -> None:
    shown = run("gc", str(unused), "--keep-none", "--unused-for", "38d", "--delete")
    assert f"prepared/{KEYS[0]}: " in shown
    assert f"prepared {KEYS[1]}: intact\n1 artefact, 0 damaged" in run("verify", str(unused))


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("--unused-for", "30d"), "a store does not tell which of them models need: pass --keep-file"),
        (("--max-size", "1Gi"), "or --keep-none if no model needs any of them"),
        (("--keep-none",), "pass --unused-for or --max-size"),
        (("--keep-file", "KEEP"), "pass --unused-for or --max-size"),
        (("--keep-file", "KEEP", "--keep-none", "--max-size", "0"), "exclude each other"),
        (("--keep-file", "/none", "--max-size", "0"), "/none: no such file or folder"),
        (("--keep-file", "/tmp", "--max-size", "0"), "/tmp cannot be read: Is a directory"),
        (("--keep-none", "--unused-for", "1h"), "what was used within 2h is never removed"),
        (("--keep-none", "--unused-for", "soon"), "is not a duration: write 30d or 12h"),
        (("--keep-none", "--max-size", "-1"), "is not a size: write 50Gi or 200G"),
        (("--keep-none", "--max-size", "1e99"), "is not a size"),
    ],
)  # fmt: skip
def test_options_that_could_remove_needed_artefacts(
    arguments: tuple[str, ...], reported: str, unused: Path, keep: Path
) -> None:
    given = [str(keep) if argument == "KEEP" else argument for argument in arguments]
    code = 2 if "cannot be read" in reported else 64
    assert reported in run("gc", str(unused), *given, "--delete", code=code)
    assert "2 artefacts, 0 damaged" in run("verify", str(unused))


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (b"", "has no key, as if nothing were needed: if that is so, pass --keep-none"),
        (b"# nothing\n", "has no key"),
        (KEYS[0][:15].encode(), "line 1 of --keep-file"),
        (b"Error from server (Forbidden)", "is not a key"),
        (b"{}", "is not the task of a collection: job"),
        (b"\xff", "is not a text"),
        ("\n".join([KEYS[0]] * 50_001).encode(), "more than 50000 keys"),
    ],
)
def test_a_file_that_names_no_keys_removes_nothing(
    content: bytes, reported: str, unused: Path, keep: Path
) -> None:
    keep.write_bytes(content)
    shown = run("gc", str(unused), "--keep-file", str(keep), "--max-size", "0", "--delete", code=2)
    assert reported in shown
    assert "2 artefacts, 0 damaged" in run("verify", str(unused))


def test_leftovers_hidden_by_a_damaged_manifest_are_reported(address: str, place: Place) -> None:
    place.put(f"prepared/{KEYS[0]}/manifest.json", b"{")
    shown = run("gc", address, code=1)
    assert "other leftovers are not known: prepared model abababababab is damaged" in shown


# What may be wrong with a folder to import


def leave_a_pipe(taken: Path) -> str:
    (taken / "manifest.json").unlink()
    os.mkfifo(taken / "manifest.json")
    return "holds no artefact: manifest.json: not a regular file"


def grow_the_manifest(taken: Path) -> str:
    os.truncate(taken / "manifest.json", 4 << 30)
    return "is not the manifest of an artefact: more than 16 MiB"


def link_a_file(taken: Path) -> str:
    secret = taken.parent / "credentials"
    (taken / FILES[1]).rename(secret)  # even one with the right content
    (taken / FILES[1]).symlink_to(secret)
    return f"in the folder {taken} is damaged: file {FILES[1]} is missing"


def link_a_folder(taken: Path) -> str:
    secret = taken.parent / "credentials"
    (taken / "golden").rename(secret)
    (taken / "golden").symlink_to(secret)
    return f"is damaged: file {FILES[1]} is missing"


def change_the_last_file(taken: Path) -> str:
    """The others are whole, and still not stored."""
    path = taken / FILES[2]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    return f"is damaged: file {FILES[2]} has sha256"


def grow_a_file(taken: Path) -> str:
    os.truncate(taken / FILES[2], 1 << 40)
    return f"is damaged: file {FILES[2]} has {1 << 40} bytes instead of"


def lie(taken: Path, **changes: object) -> None:
    path = taken / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def name_no_key(taken: Path) -> str:
    lie(taken, key="../x")
    return "is damaged: the key in manifest.json is not a sha256"


def name_an_engine(taken: Path) -> str:
    engine = engine_info("tensorrt-rtx", prepared_key=KEYS[1], file=FILES[1])
    lie(taken, engine=engine.model_dump())
    return "is damaged: the key in manifest.json is not that of its recipe"


def name_a_long_path(taken: Path) -> str:
    entries = json.loads((taken / "manifest.json").read_text())["files"]
    lie(taken, files=[*entries, entries[0] | {"path": "x" * 300}])
    return "is damaged: manifest.json lists 'xxx"


@pytest.mark.parametrize("medium", ["folder", "bucket"])
@pytest.mark.parametrize(
    "damage",
    [
        leave_a_pipe, grow_the_manifest, link_a_file, link_a_folder, change_the_last_file, grow_a_file,
        name_no_key, name_an_engine, name_a_long_path,
    ],
)  # fmt: skip
def test_nothing_of_a_folder_is_stored_unless_all_of_it_is_intact(
    damage: Callable[[Path], str], medium: str, folder: Path, place: Place, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    run("export", str(folder), KEYS[0], str(taken))
    reported = damage(taken)
    other = tmp_path / "other"
    other.mkdir()
    where = str(other) if medium == "folder" else place.uri
    shown = run("import", where, str(taken), code=2)
    assert reported in shown
    assert "the store is unavailable" not in shown
    assert list(other.iterdir()) == []
    assert place.objects() == {}


def test_an_engine_is_imported_under_the_key_of_its_recipe(tmp_path: Path) -> None:
    engine = engine_info("tensorrt-rtx", prepared_key=KEYS[1], file=FILES[1])
    key = engine_key(engine.prepared_key, engine.recipe)
    for name in ("store", "other"):
        (tmp_path / name).mkdir()

    def describe(listed: tuple[ArtifactFile, ...]) -> Manifest:
        return manifest(key, listed).model_copy(update={"engine": engine})

    publish(Store(tmp_path / "store", ENGINE), key, content(tmp_path / "files"), describe)
    run("export", str(tmp_path / "store"), key, str(tmp_path / "taken"))
    shown = run("import", str(tmp_path / "other"), str(tmp_path / "taken"))
    assert f"engines {key}: imported" in shown
    assert "1 artefact, 0 damaged" in run("verify", str(tmp_path / "other"))


# What is wrong with a folder or a setting


def test_a_folder_that_is_no_store(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "documents").mkdir(parents=True)
    new = str(tmp_path / "new")
    for name, *arguments in (("ls",), ("verify",), ("gc", "--delete"), ("export", KEYS[0], new)):
        shown = run(name, str(other), *arguments, code=64)
        assert f"{other} is not the folder of a store" in shown
        assert "name the folder where the store's volume is mounted" in shown
    (other / "documents").rename(other / "lost+found")
    assert run("ls", str(other)) == "0 artefacts\n", "a new volume"
    assert run("ls", str(other), "--json") == ""


@pytest.mark.parametrize("name", ["x" * 300, "/proc/x/y", "FILE/sub"])
def test_a_folder_that_cannot_be_made(name: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    new = str(tmp_path / name.replace("FILE", "file"))
    assert f"cannot create {new}: " in run("export", str(folder), KEYS[0], new, code=2)
    assert "holds no artefact: manifest.json: " in run("import", str(folder), new, code=64)


def test_names_that_are_too_long(folder: Path, tmp_path: Path) -> None:
    long = str(tmp_path / ("x" * 300))
    assert "cannot be read: File name too long" in run("ls", long, code=2)
    assert "has no artefact whose key begins" in run("verify", str(folder), "f" * 5000, code=2)


def test_an_export_that_fails_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    path = folder / "prepared" / KEYS[0] / FILES[2]
    whole = path.read_bytes()
    path.write_bytes(b"damaged")
    new = tmp_path / "new"
    assert f"is damaged: file {FILES[2]}" in run("export", str(folder), KEYS[0], str(new), code=2)
    assert not new.exists()
    path.write_bytes(whole)
    assert "exported" in run("export", str(folder), KEYS[0], str(new))


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        (
            {"AWS_SECRET_ACCESS_KEY": "wr0ng"},
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, of an identity that may",
        ),
        ({"AWS_ENDPOINT_URL": "minio:9000"}, "the environment variable AWS_ENDPOINT_URL does not begin"),
    ],
)  # fmt: skip
def test_remedies_name_the_environment(
    changes: dict[str, str], reported: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    shown = run("ls", place.uri, code=2)
    assert reported in shown
    assert "secretRef" not in shown
    assert "wr0ng" not in shown


# fault: Store | threads of the bucket's client are still at work when a stage ends, which crashes an interpreter that is
#   being finalized
def test_a_command_that_has_read_a_bucket_ends_without_finalizing_anything() -> None:
    program = """\
import atexit, sys
import obstore
import enginewright_cli

def run():
    atexit.register(print, "finalized", flush=True)
    print("damaged")
    sys.exit(1)

enginewright_cli._run = run
enginewright_cli.main()
"""
    ended = run_program([sys.executable, "-c", program], code=None)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "damaged\n", "")
