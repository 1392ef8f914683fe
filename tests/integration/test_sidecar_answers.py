"""A canary's answers to the golden inputs of the revision that serves, through the real stages' parts."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from enginewright_contract.manifest import Manifest
from enginewright_contract.measurements import AnswerChange, Measurements
from enginewright_contract.task import ServeTask
from enginewright_contract.verdict import Check
from enginewright_runtime.core.paths import Paths
from enginewright_serving import fetch_artifact
from enginewright_serving.sidecar.answers import AnswerComparison
from enginewright_serving.sidecar.client import Client, ServerResponse, UnreachableError
from enginewright_serving.sidecar.inferences import Inferences

from tests.support.broken_models import parse_text
from tests.support.optional import present
from tests.support.serving import Feeds, Server, linear_model, scale_linear
from tests.support.sidecar import Proxy, Sidecar, artifact, change_manifest, share_token

NEW, STABLE = "b" * 64, "a" * 64
SAMPLES = [{"x": np.full((rows, 8), rows / 2, np.float32)} for rows in (1, 3)]
QUICK = 0.2


def publish(root: Path, key: str, stored: onnx.ModelProto, samples: list[Feeds]) -> Path:
    """Put an artefact into the store of `root`; return its folder."""
    made = root / f"made-{key[:1]}"
    made.mkdir()
    artifact(made, stored, samples)
    change_manifest(made, key=key)
    folder = root / "store/prepared" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(made / "artifact", folder)
    return folder


def fetch_canary(root: Path) -> ServeTask:
    """Fetch as a canary's pod does."""
    task = ServeTask(model="m", revision="r2", prepared_key=NEW, stable_key=STABLE, backend="cpu")
    (root / "dev").mkdir(exist_ok=True)
    (root / "dev/termination-log").touch()
    assert fetch_artifact.run(task, Paths.under(root)).ok
    return task


def pair(
    root: Path, new: onnx.ModelProto, stable: onnx.ModelProto, own: list[Feeds] | None = None
) -> ServeTask:
    publish(root, NEW, new, own or SAMPLES)
    publish(root, STABLE, stable, SAMPLES)
    return fetch_canary(root)


def answers(sidecar: Sidecar) -> AnswerChange | None:
    answer = sidecar.get("/measurements")
    return Measurements.model_validate_json(answer.body).answers if answer.status == 200 else None


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run the server of a changed model."""
    root = tmp_path_factory.mktemp("canary")
    with Server(root, pair(root, scale_linear(1.5), linear_model())) as server:
        yield server


def compare_answers(root: Path, task: ServeTask, server: Server) -> AnswerChange:
    """Return the comparison of another sidecar of `server`; the pod must be and stay ready."""
    share_token(server, root)
    with Sidecar(root, task, server.port, pace=QUICK) as sidecar:
        sidecar.until_ready()
        sidecar.until(lambda: answers(sidecar) is not None, "answers are compared")
        change = answers(sidecar)
        assert sidecar.is_ready()
        assert sidecar.check(Check.GOLDEN).state == "ok"
        report = Measurements.model_validate_json(sidecar.get("/measurements").body)
        assert report.responses == {}
        assert (report.golden_wrong, report.golden_failed) == (0, 0)
        assert {latency.name for latency in report.latencies} == {"s0", "s1"}
    assert change is not None
    assert change.prepared_key == STABLE
    return change


def test_only_manifest_and_golden_samples_are_fetched(tmp_path: Path) -> None:
    pair(tmp_path, scale_linear(1.0), linear_model())
    folder = tmp_path / "artifact/.stable"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {"manifest.json", "golden/inputs.npz", "golden/outputs.npz"}
    assert (tmp_path / "artifact/manifest.json").read_bytes() != (
        folder / "manifest.json"
    ).read_bytes()


def test_the_difference_of_a_changed_model_is_reported(canary: Server, tmp_path: Path) -> None:
    change = compare_answers(tmp_path, pair(tmp_path, scale_linear(1.5), linear_model()), canary)
    assert (change.failure, change.samples) == ("", 2)
    weights = np.arange(32, dtype=np.float32).reshape(8, 4) / 8
    changes = {output.name: output for output in change.outputs}
    largest = max(float((sample["x"] @ weights).max()) for sample in SAMPLES)
    assert changes["y"].max_abs == pytest.approx(0.5 * largest, rel=1e-5)
    total = max(float((sample["x"] @ weights).sum()) for sample in SAMPLES)
    assert changes["total"].max_abs == pytest.approx(0.5 * total, rel=1e-5)
    for output in change.outputs:
        assert output.relative == pytest.approx(0.5, rel=1e-5)
    assert changes["y"].top1 == 1.0  # all scores have grown alike


def detector(threshold: float) -> onnx.ModelProto:
    """Return a model that finds the positions above a threshold."""
    return parse_text(f"""(float[batch, 8] x)
        => (int64[2, count] found, float[batch, 8] zero, float[batch, 8] noise) {{
        least = Constant <value_float = {threshold}> () above = Greater(x, least)
        found = NonZero(above) zero = Sub(x, x) noise = RandomUniformLike(x) }}""")


def test_sizes_that_depend_on_data_and_outputs_of_zeros_are_compared_and_varying_ones_left_out(
    tmp_path: Path,
) -> None:
    task = pair(tmp_path, detector(1.0), detector(0.4))
    with Server(tmp_path, task) as server:
        change = compare_answers(tmp_path, task, server)
    assert (change.failure, change.samples) == ("", 2)
    changes = {output.name: output for output in change.outputs}
    assert changes.keys() == {"found", "zero"}
    # nothing of the first sample is found any more
    assert (changes["found"].form, changes["found"].resized) == ("", 1)
    assert changes["found"].relative == 0.0
    assert (changes["zero"].relative, changes["zero"].resized) == (0.0, 0)


def other_input() -> onnx.ModelProto:
    return parse_text("(float[batch, 8] image) => (float[batch, 8] y) { y = Neg(image) }")


OTHER: list[tuple[onnx.ModelProto, list[Feeds], str]] = [
    (other_input(), [{"image": entry["x"]} for entry in SAMPLES], "no input 'image'"),
    (
        linear_model(6),
        [{"x": entry["x"][:, :6]} for entry in SAMPLES],
        "does not run golden sample 's0' of the stable revision: ",
    ),
]


@pytest.mark.parametrize(("stable", "samples", "why"), OTHER, ids=["input", "shape"])
def test_other_inputs_are_a_plain_sentence_and_no_failure_of_the_pod(
    stable: onnx.ModelProto, samples: list[Feeds], why: str, canary: Server, tmp_path: Path
) -> None:
    publish(tmp_path, NEW, scale_linear(1.5), SAMPLES)
    publish(tmp_path, STABLE, stable, samples)
    change = compare_answers(tmp_path, fetch_canary(tmp_path), canary)
    assert why in change.failure
    assert (change.samples, change.outputs) == (0, ())


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def damage_outputs(folder: Path) -> None:
    file = folder / "golden/outputs.npz"
    content = bytearray(file.read_bytes())
    content[-30] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("change", "why"),
    [(remove_folder, "has no prepared model"), (damage_outputs, "outputs.npz has sha256")],
)
def test_a_failed_fetch_is_reported_and_fails_no_pod(
    change: Callable[[Path], None], why: str, canary: Server, tmp_path: Path
) -> None:
    publish(tmp_path, NEW, scale_linear(1.5), SAMPLES)
    change(publish(tmp_path, STABLE, linear_model(), SAMPLES))
    comparison = compare_answers(tmp_path, fetch_canary(tmp_path), canary)
    assert "were not fetched" in comparison.failure
    assert why in comparison.failure


def test_a_later_attempt_replaces_leftovers(tmp_path: Path) -> None:
    publish(tmp_path, NEW, scale_linear(1.0), SAMPLES)
    fetch_canary(tmp_path)
    assert (tmp_path / "artifact/.stable/failure").exists()
    publish(tmp_path, STABLE, linear_model(), SAMPLES)
    fetch_canary(tmp_path)
    assert not (tmp_path / "artifact/.stable/failure").exists()
    assert (tmp_path / "artifact/.stable/golden/outputs.npz").exists()


def test_a_restart_of_the_server_does_not_repeat_the_comparison(tmp_path: Path) -> None:
    """Inputs that end the server would end it again and again."""
    own = [{"x": np.full((1, 8), 0.25, np.float32)}]
    task = pair(tmp_path, scale_linear(2.0), linear_model(), own)
    stable = {sample["x"].tobytes()[-8:] for sample in SAMPLES}
    with (
        Server(tmp_path, task) as first,
        Proxy(first.port) as proxy,
        Sidecar(tmp_path, task, proxy.port, pace=QUICK) as sidecar,
    ):
        sidecar.until(lambda: answers(sidecar) is not None, "answers are compared")
        change = present(answers(sidecar))
        assert [output.relative for output in change.outputs] == pytest.approx([1.0, 1.0], rel=1e-5)
        asked = len(proxy.asked)
        assert sum(body in stable for body in proxy.asked) == len(SAMPLES)
        first.stop()
        with Server(tmp_path, task) as second:
            proxy.server_port = second.port
            sidecar.until(lambda: len(proxy.asked) > asked + 5, "golden inferences")
            sidecar.until(lambda: answers(sidecar) is not None, "the server reports again")
            assert answers(sidecar) == change
            assert not stable.intersection(proxy.asked[asked:])


class Answering:
    """A client whose responses are given: a status, or an error that is raised."""

    def __init__(self, outcomes: list[int | Exception]) -> None:
        self.outcomes = outcomes
        self.headers: list[str] = []

    async def post(self, _path: str, headers: str, _body: Any, _seconds: float) -> ServerResponse:
        self.headers.append(headers)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        response = ServerResponse()
        response.status = outcome
        response.body = b'{"outputs": []}' if outcome == 200 else b'{"error": "no"}'
        return response


def steps(
    root: Path, outcomes: list[int | Exception], processes: Iterator[int] | None = None
) -> tuple[AnswerComparison, Answering]:
    """Return a comparison after as many steps as use up the outcomes, each of the next of `processes`, if given."""
    pair(root, scale_linear(1.0), linear_model())
    own = Manifest.model_validate_json((root / "artifact/manifest.json").read_bytes())
    client: Any = Answering(outcomes)
    inferences = Inferences(client, "m", 1.0, "Enginewright-Probe: t\r\n")
    comparison = AnswerComparison(inferences, own, 0, Paths.under(root).stable, STABLE)

    async def run() -> None:
        while client.outcomes and comparison.result is None:
            await comparison.step(0.5, next(processes) if processes else 0)

    asyncio.run(run())
    return comparison, client


LOST = UnreachableError("closed the connection")
LATE = UnreachableError("did not respond", late=True)
REFUSED = UnreachableError("does not listen", unreachable=True, sent=False)
ENDED = UnreachableError("does not listen", unreachable=True)  # when it had been sent


SAMPLE = "golden sample 's0'"
NOT_RUN = f"does not run {SAMPLE} of the stable revision: no"
SAME: tuple[int, ...] = ()
RESTARTED = (0, 2)  # a second crash would reject the revision


@pytest.mark.parametrize(
    ("outcomes", "processes", "failure"),
    [
        *(([status] * 5, SAME, "") for status in (408, 429, 502, 503, 504)),
        ([503, 400], SAME, NOT_RUN),
        ([503, 500], SAME, NOT_RUN),
        ([503, 200], SAME, "'s0' of the stable revision has no output"),
        ([LOST, LOST, 503], SAME, ""),
        ([LATE, LATE, 503], SAME, ""),
        ([REFUSED] * 5 + [LOST, LOST, 503], SAME, ""),  # nothing was sent
        ([LOST] * 3, SAME, "the server closed the connection, 3 times"),
        ([LATE] * 3, SAME, "the server did not respond, 3 times"),
        ([LOST], RESTARTED, f"restarted when {SAMPLE}"),
        ([ENDED], RESTARTED, f"restarted when {SAMPLE}"),
        ([REFUSED, 503], RESTARTED, ""),
    ],
)
def test_the_comparison_ends_with_a_failure_or_goes_on(
    outcomes: list[int | Exception], processes: tuple[int, ...], failure: str, tmp_path: Path
) -> None:
    left: list[int | Exception] = [503] if failure else []
    comparison, client = steps(tmp_path, [*outcomes, *left], iter(processes) if processes else None)
    assert client.outcomes == left
    assert all("Enginewright-Probe: t" in header for header in client.headers)
    assert all("Enginewright-Defer: 500" in header for header in client.headers)
    assert (comparison.result is not None) is bool(failure)
    if comparison.result is not None:
        assert failure in comparison.result.failure


async def get_error(request: bytes) -> UnreachableError:
    """Return the error of `request` to a server that answers one first, and ends with the second.

    Without a request it ends before one is sent.
    """
    connections: list[asyncio.StreamWriter] = []

    async def answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        if request:
            await reader.readuntil(request)
            server.close()
            writer.close()

    server = await asyncio.start_server(answer_one, "127.0.0.1", 0)
    client = Client(server.sockets[0].getsockname()[1])
    await client.get("/", 5)
    if not request:
        server.close()
        connections[0].close()
        await asyncio.sleep(0.1)
    with pytest.raises(UnreachableError) as raised:
        await client.post("/", "", [request], 5)
    client.close()
    return raised.value


@pytest.mark.parametrize("request_body", [b"", b"inputs"])
def test_whether_anything_was_sent_is_known_also_of_a_connection_that_was_kept(
    request_body: bytes,
) -> None:
    error = asyncio.run(get_error(request_body))
    assert (error.unreachable, error.sent) == (True, bool(request_body))


@pytest.mark.parametrize(("limit", "runs"), [(51, False), (52, True)])
def test_samples_larger_than_the_sidecars_memory_are_not_run(
    limit: int, runs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outputs of the larger sample have 3 x 4 + 1 numbers of four bytes."""
    monkeypatch.setattr("enginewright_serving.sidecar.answers._LEAST_LARGEST", limit)
    comparison, client = steps(tmp_path, [503])
    assert (comparison.result is None) is runs
    assert bool(client.headers) is runs
    if comparison.result is not None:
        assert "memory" in comparison.result.failure
