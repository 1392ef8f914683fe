"""`enginewright engine inspect` on real engines, on what is none, and on a cluster that answers."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from enginewright.kube.resources import ACCELERATOR_CLASSES, INFERENCE_ENGINES
from enginewright_cli.app import app
from enginewright_cli.inspect.fit import EngineTarget, judge
from enginewright_cli.inspect.result import EngineInspection
from enginewright_contract.images import ImageFacts
from typer.testing import CliRunner

from tests.support.broken_models import relu
from tests.support.engines import EnginePlace, build_mixed
from tests.support.plan_objects import engine_spec, make_object
from tests.support.programs import run_program
from tests.support.web import WebServer, serve

VERSION = "1.7.1.116"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a real engine's folder in a store; tests copy what they change."""
    place = EnginePlace(tmp_path_factory.mktemp("place"), in_process=True)
    place.prepare_model(build_mixed())
    task = place.engine_task()
    assert {outcome.code for outcome in place.build_engine(task).values()} == {0}
    return place.engine_folder(task)


@pytest.fixture
def copy(artifact: Path, tmp_path: Path) -> Path:
    target = tmp_path / "copy"
    subprocess.run(["cp", "-r", str(artifact), str(target)], check=True)
    return target


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["engine", "inspect", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def read(*arguments: str, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(*arguments, "--json", code=code)[0])
    return document


def test_an_artefact(artifact: Path) -> None:
    shown, said = run(str(artifact), "--compute-capability", "8.9")
    assert said == ""
    assert "\x1b" not in shown, "no colours into a pipe"
    for text in (
        "loads on compute capability 8.9",
        "tensorrt-rtx 1.7.1.116",
        "8 of 10 in the engine",
        "det_bad (Det), add_out (Add)",
        "part-0.engine: 21 layers, ELEMENTWISE 4",
    ):
        assert text in shown
    engine_report = read(str(artifact))["engine"]
    assert engine_report["kind"] == "artifact"
    assert [len(part["nodes"]) for part in engine_report["partitions"]] == [8]
    assert {item["state"] for item in engine_report["files"]} == {"whole"}
    engine = next(item for item in engine_report["files"] if item["path"] == "model/part-0.engine")
    assert (engine["version"], engine["compute_capabilities"]) == (VERSION, ["8.9"])
    assert engine_report["layers"][0]["layers"][0]["nodes"] == ["conv_1"]


def test_the_command_as_kubectl_runs_it(artifact: Path) -> None:
    done = run_program(
        [
            str(Path(sys.executable).with_name("kubectl-enginewright")),
            "engine",
            "inspect",
            str(artifact),
        ],
        timeout=60,
        code=None,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "part-0" in done.stdout


def test_the_optimization_level_of_the_recipe_is_shown(copy: Path) -> None:
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    assert "optimization level" not in run(str(copy))[0]
    manifest["engine"]["recipe"]["optimization_level"] = 0
    path.write_text(json.dumps(manifest))
    assert "optimization level 0" in run(str(copy))[0]
    assert read(str(copy))["engine"]["optimization_level"] == 0


def test_parts_that_the_samples_do_not_judge_are_shown(copy: Path) -> None:
    path = copy / "manifest.json"
    manifest = json.loads(path.read_text())
    parts = {"axis": 1, "indices": [4], "count": 1, "of": 84}
    compared = {"name": "dets", "compared_with": "prepared", "unjudged": [parts]}
    manifest["engine"]["parity"] = [compared]
    path.write_text(json.dumps(manifest))
    shown = " ".join(run(str(copy))[0].split())
    assert "not judged 1 of 84 indices of axis 1 (4) of output 'dets' do not vary enough" in shown
    assert read(str(copy))["engine"]["unjudged"].startswith("1 of 84 indices")


def test_files_of_an_artefact_alone(artifact: Path, tmp_path: Path) -> None:
    engine = artifact / "model/part-0.engine"
    report = read(str(engine), "--compute-capability", "8.9")
    assert report["engine"]["backend_version"] == VERSION
    assert report["fit"]["loads"]
    plan = tmp_path / "some.plan"
    plan.write_bytes(engine.read_bytes())
    assert read(str(plan))["engine"]["compute_capabilities"] == ["8.9"]
    assert read(str(artifact / "model/model.onnx"))["engine"]["backend"] == "tensorrt-rtx"
    assert read(str(artifact / "manifest.json"))["engine"]["kind"] == "artifact"
    manifest = tmp_path / "manifest.json"
    manifest.write_bytes((artifact / "manifest.json").read_bytes())
    alone = read(str(manifest))["engine"]
    assert (alone["kind"], alone["files"]) == ("manifest", [])
    assert alone["notes"] == ["manifest only: its files are not in the same folder"]


def write(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return what changes one file of an artefact."""
    return lambda copy: (copy / name).write_bytes(change((copy / name).read_bytes()))


def link_log(copy: Path) -> None:
    path = copy / "build.log"
    path.rename(copy.parent / "build.log")
    path.symlink_to(copy.parent / "build.log")


def other_builder(copy: Path) -> None:
    """Put in an engine whose header says another version, its digest corrected."""
    path, manifest = copy / "model/part-0.engine", copy / "manifest.json"
    content = bytearray(path.read_bytes())
    before = hashlib.sha256(content).hexdigest()
    content[25] = 6
    path.write_bytes(content)
    after = hashlib.sha256(content).hexdigest()
    manifest.write_text(manifest.read_text().replace(before, after))


@pytest.mark.parametrize(
    ("damage", "reported"),
    [
        (
            write("model/part-0.engine", lambda content: content[:1000]),
            "model/part-0.engine is cut off: it has 1000 bytes",
        ),
        (
            write("model/model.onnx", lambda content: content[:-1] + b"x"),
            "model/model.onnx is not the file that the manifest lists",
        ),
        (lambda copy: (copy / "golden/inputs.npz").unlink(), "golden/inputs.npz is missing"),
        (link_log, "build.log is not the file that the manifest lists"),
        (
            write("manifest.json", lambda text: text.replace(b'"build.log"', b'"../build.log"')),
            "../build.log is not the file that the manifest lists",
        ),
        (other_builder, "was built by version 1.6.1.116, but the manifest says 1.7.1.116"),
    ],
)
def test_damage(damage: Callable[[Path], object], reported: str, copy: Path) -> None:
    damage(copy)
    shown, _ = run(str(copy), code=1)
    assert "will not load" in shown
    assert f"because {reported}" in shown or reported in shown
    assert not read(str(copy), "--compute-capability", "8.9", code=1)["fit"]["loads"]


def test_engines_around_which_a_model_is(copy: Path) -> None:
    path = copy / "model/model.onnx"
    engine = copy / "model/part-0.engine"
    model = onnx.load(path)
    (context,) = [node for node in model.graph.node if node.op_type == "EPContext"]
    attributes = {item.name: item for item in context.attribute}
    attributes["embed_mode"].i = 1
    attributes["ep_cache_context"].s = engine.read_bytes()
    onnx.save(model, path)
    report = read(str(path), "--compute-capability", "7.5", code=1)
    assert report["engine"]["files"][0]["path"] == "inside the model"
    assert report["engine"]["files"][0]["version"] == VERSION
    assert report["fit"]["obstacles"] == [
        (
            "it runs on compute capability 8.9, not on 7.5: TensorRT-RTX builds engines for compute"
            " capability 7.5, but they cannot be served: ONNX Runtime's TensorRT-RTX provider supports"
            " only 8.6, 8.9, 12.0 and newer"
        )
    ]
    attributes["embed_mode"].i = 0
    attributes["ep_cache_context"].s = b"gone.engine"
    onnx.save(model, path)
    shown, _ = run(str(path), code=1)
    assert "engine file gone.engine is not beside the model" in shown


def test_control_characters_of_an_engine_are_spelled_out(copy: Path) -> None:
    path = copy / "model/model.onnx"
    model = onnx.load(path)
    (context,) = [node for node in model.graph.node if node.op_type == "EPContext"]
    (file,) = [item for item in context.attribute if item.name == "ep_cache_context"]
    file.s = b"\x1b[2Jgone.engine"
    onnx.save(model, path)
    shown, _ = run(str(path), code=1)
    assert "engine file \\x1b[2Jgone.engine is not beside the model" in shown
    manifest = copy / "manifest.json"
    body = json.loads(manifest.read_text())
    body["engine"]["partitions"][0]["nodes"] = ["node\x1b]0;title\x07"]
    body["engine"]["partitions"][0]["context_node"] = "[red]\x1b[31m"
    manifest.write_text(json.dumps(body))
    shown, _ = run(str(copy), code=1)
    assert "node\\x1b]0;title\\x07" in shown
    assert "[red]\\x1b[31m" in shown
    assert "\x1b" not in shown


PLAIN = relu().SerializeToString()


@pytest.mark.parametrize(
    ("name", "content", "reported"),
    [
        ("gone.engine", None, "gone.engine: no such file or folder"),
        ("a.engine", b"", "does not have the header of an engine of TensorRT"),
        ("a.plan", b"vtrt", "does not have the header of an engine of TensorRT"),
        ("a.plan", b"\x7fELF" + bytes(100), "does not have the header of an engine of TensorRT"),
        ("notes.txt", b"hello", "does not have the header of an engine of TensorRT"),
        ("m.json", b"", "m.json is not a valid manifest: Invalid JSON"),
        ("m.json", b"{}", "m.json is not a valid manifest: key: Field required"),
        ("m.json", b"\xff\xfe", "m.json is not a valid manifest: Invalid JSON"),
        ("m.json", b"[1, 2]", "m.json is not a valid manifest: "),
        ("m.onnx", b"", "m.onnx is not an ONNX model, or is truncated"),
        ("m.onnx", b"garbage" * 100, "m.onnx is not an ONNX model, or is truncated"),
        (
            "m.onnx",
            PLAIN,
            "contains no engine: it has no EPContext node; run enginewright preflight",
        ),
        ("m.onnx", PLAIN[:-5], "m.onnx is not an ONNX model, or is truncated"),
        ("folder/", b"", "has no manifest.json, so it is not an artefact"),
    ],
)
def test_a_file_that_is_no_engine(
    name: str, content: bytes | None, reported: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    shown, said = run(str(path), code=64 if content is None else 2)
    assert shown == ""
    assert reported in said
    assert "Traceback" not in said


def test_a_prepared_model_is_no_engine(artifact: Path) -> None:
    prepared = next((artifact.parent.parent / "prepared").iterdir())
    assert "describes a prepared model for backend cpu" in run(str(prepared), code=2)[1]


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("--compute-capability", "89"), "write MAJOR.MINOR, such as 8.9"),
        (("--compute-capability", "8.9", "--class", "l4"), "give one of --class and"),
        (
            ("--namespace", "n"),
            "is a path, and --namespace applies only to the name of an InferenceEngine",
        ),
    ],
)
def test_usage(arguments: tuple[str, ...], reported: str, artifact: Path) -> None:
    assert reported in " ".join(run(str(artifact), *arguments, code=64)[1].split())


def image(version: str = VERSION, ort: str = "1.31.1") -> ImageFacts:
    return ImageFacts(
        variant="rtx",
        ort_distribution="onnxruntime",
        ort_version=ort,
        max_opset=26,
        max_ir_version=13,
        providers=(),
        backends={"tensorrt-rtx": version},
        onnx_version="1.23.2",
        runtime_version="0.1.0",
    )


ENGINE = EngineInspection(
    source="e",
    kind="artifact",
    backend="tensorrt-rtx",
    backend_version=VERSION,
    ort_version="1.31.1",
    compute_capabilities=("8.9",),
)


@pytest.mark.parametrize(
    ("change", "target", "obstacles", "not_compared"),
    [
        ({}, EngineTarget("class l4", "8.9", ("tensorrt-rtx",), (image(),)), (), ()),
        ({}, EngineTarget("class l4", "8.9", ("tensorrt-rtx",), (image("1.6"), image())), (), ()),
        (
            {},
            EngineTarget("class l4", "8.9", ("cuda",), (image(),)),
            ("it requires backend tensorrt-rtx, but class l4 allows only cuda",),
            (),
        ),
        (
            {},
            EngineTarget("class t4", "7.5", (), (image("1.6"), image(ort="1.30.0"))),
            (
                "it runs on compute capability 8.9, not on 7.5",
                (
                    "it was built by tensorrt-rtx 1.7.1.116 with ONNX Runtime 1.31.1, but the runtime"
                    " images have tensorrt-rtx 1.6 with ONNX Runtime 1.31.1, tensorrt-rtx 1.7.1.116"
                    " with ONNX Runtime 1.30.0: serve with the image that built it"
                ),
            ),
            (),
        ),
        (
            {"problems": ("model.onnx is missing",)},
            EngineTarget("class l4"),
            ("model.onnx is missing",),
            (
                "compute capability: class l4 does not specify that of its devices",
                "versions: no runtime image of variant rtx is known",
            ),
        ),
        (
            {"compute_capabilities": (), "backend": None},
            EngineTarget("class l4", "8.9", unknown=("versions: you may not read them",)),
            (),
            (
                "versions: you may not read them",
                "compute capability: the engine does not record those that it runs on",
                "versions: the engine does not record what built it",
            ),
        ),
        (
            {},
            EngineTarget("class a10", "8.6", (), (image(),)),
            ("it runs on compute capability 8.9, not on 8.6: build one for it",),
            (),
        ),
        (
            {"compute_capabilities": ("8.0",)},
            EngineTarget("class a100", "8.0", (), (image(),)),
            ("TensorRT-RTX builds engines for compute capability 8.0, but they cannot be served",),
            (),
        ),
        ({"ort_version": None}, EngineTarget("class l4", "8.9", (), (image(ort="1.20"),)), (), ()),
    ],
)
def test_fit(
    change: dict[str, Any],
    target: EngineTarget,
    obstacles: tuple[str, ...],
    not_compared: tuple[str, ...],
) -> None:
    fit = judge(ENGINE.model_copy(update=change), target)
    assert fit.loads == (not obstacles)
    assert len(fit.obstacles) == len(obstacles)
    assert all(
        obstacle.startswith(reported)
        for obstacle, reported in zip(fit.obstacles, obstacles, strict=True)
    )
    assert fit.not_compared == not_compared


KEY = "ab" * 32
BUILT = {
    "sha256": "cd" * 32,
    "sizeBytes": 5_000_000,
    "buildMilliseconds": 12_300,
    "computeCapabilities": ["8.9"],
    "nodesTotal": 10,
    "nodesAccelerated": 9,
    "computePermilleElsewhere": 20,
    "elsewhere": ["det (Det)"],
    "p99Microseconds": 4200,
}
FAILED = {"reason": "BuildFailed", "message": "it cannot be built", "stage": "build"}


def resource(name: str, **status: Any) -> dict[str, Any]:
    spec = engine_spec(ahead_of_time=True)
    recipe = {**spec["recipe"], "backendVersion": VERSION, "optimizationLevel": 5}
    return make_object(
        "InferenceEngine",
        name,
        "models",
        spec={**spec, "key": KEY, "recipe": recipe},
        status=status,
    )


def accelerator_class(name: str, capability: str) -> dict[str, Any]:
    spec = {"nodeSelector": {"a": "b"}, "backends": ["tensorrt-rtx"]}
    return make_object("AcceleratorClass", name, spec={**spec, "computeCapability": capability})


IMAGES = make_object(
    "ConfigMap",
    "enginewright-images",
    "system",
    data={"a": json.dumps({"image": "i", "facts": image().model_dump()}), "b": "no JSON"},
)
NO_OBJECT = {"items": ["no object"]}
REFUSED = {"kind": "Status", "message": "you may not", "code": 403}
ENGINES = INFERENCE_ENGINES.path("models")
CLASSES = ACCELERATOR_CLASSES.path()
OBJECTS: dict[str, Any] = {
    f"{ENGINES}/built": resource("built", engine=BUILT),
    f"{ENGINES}/failed": resource("failed", failure=FAILED),
    f"{ENGINES}/building": resource("building", stage="build", percent=40),
    f"{ENGINES}/odd": resource("odd") | {"spec": {}},
    ENGINES: {
        "items": [resource("built"), resource("failed")],
        "metadata": {"resourceVersion": "1"},
    },
    f"{CLASSES}/l4": accelerator_class("l4", "8.9"),
    f"{CLASSES}/t4": accelerator_class("t4", "7.5"),
    f"{ENGINES}/web": NO_OBJECT,
    f"{CLASSES}/web": NO_OBJECT,
    INFERENCE_ENGINES.path("web", "built"): NO_OBJECT,
    CLASSES: {"items": [], "metadata": {"resourceVersion": "1"}},
    "/api/v1/configmaps": {"items": [IMAGES], "metadata": {"resourceVersion": "1"}},
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have an API server that holds `OBJECTS`."""
    with WebServer() as server:
        for path, obj in OBJECTS.items():
            server.routes[path] = serve(json.dumps(obj).encode())
        server.routes[f"{ENGINES}/secret"] = lambda request: request.send(
            json.dumps(REFUSED).encode(), 403
        )
        write_kubeconfig(tmp_path, server.server_address[1], monkeypatch)
        yield


def write_kubeconfig(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kubeconfig"
    context = {"cluster": "c", "user": "u", "namespace": "models"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": context}],
    }
    path.write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", str(path))


@pytest.mark.usefixtures("cluster")
def test_a_resource() -> None:
    shown, _ = run("built", "--class", "l4")
    for text in (
        "InferenceEngine models/built",
        "loads on class l4",
        "9 of 10 in the engine, 2% of the time outside",
        "det (Det)",
        "4.8 MiB, sha256 cdcdcdcdcdcd",
        "12.3 s, ",
        "optimization level 5",
        "p99 4.20 ms",
    ):
        assert text in shown
    assert "not compared" not in shown
    assert read("built", "--namespace", "models")["engine"]["key"] == KEY
    fit = read("built", "--class", "t4", code=1)["fit"]
    assert fit["obstacles"] == [
        (
            "it runs on compute capability 8.9, not on 7.5: TensorRT-RTX builds engines for compute"
            " capability 7.5, but they cannot be served: ONNX Runtime's TensorRT-RTX provider supports"
            " only 8.6, 8.9, 12.0 and newer"
        )
    ]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (("failed",), 1, "the engine is not built: BuildFailed: it cannot be built"),
        (("building",), 1, "the engine is not built: stage build, 40%"),
        (
            ("gone",),
            2,
            "InferenceEngine gone not found in namespace models; existing: built, failed",
        ),
        (("built", "-n", "other"), 2, "Enginewright is not installed in the cluster: "),
        (("built", "--class", "gone"), 2, "AcceleratorClass gone not found; there are none"),
        (("odd",), 2, "the cluster's InferenceEngine odd cannot be read: spec.key: Field required"),
        (("web",), 2, "the cluster's InferenceEngine web cannot be read: metadata: Field required"),
        (("built", "--class", "web"), 2, "the cluster's AcceleratorClass web cannot be read"),
        (("built", "-n", "web"), 2, "the cluster's InferenceEngine built cannot be read"),
        (("secret",), 2, "the cluster denies access: you may not"),
    ],
)
def test_resources_that_do_not_load(arguments: tuple[str, ...], code: int, reported: str) -> None:
    shown, said = run(*arguments, code=code)
    assert reported in shown + said


def test_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "gone"))
    assert "set KUBECONFIG to a valid file" in run("built", code=2)[1]
    (tmp_path / "bad").write_text(": [")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "bad"))
    assert "bad cannot be used" in run("built", code=2)[1]
    server = WebServer()
    write_kubeconfig(tmp_path, server.server_address[1], monkeypatch)
    server.server_close()
    assert "the API server does not respond: " in run("built", code=2)[1]
