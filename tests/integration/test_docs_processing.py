"""The examples of docs/processing.md: their steps are made, prepared and served as they stand there."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from enginewright.api.inference_model import InferenceModel
from enginewright.plan.resolve.recipe import recipe
from enginewright_cli.plan.validation import problems
from enginewright_contract.task import PrepareTask, ServeTask
from PIL import Image, ImageDraw, ImageFont

from tests.support.broken_models import parse_text
from tests.support.preparing import Workplace
from tests.support.programs import run_program
from tests.support.serving import Server, real_model

TEXT = (Path(__file__).parents[2] / "docs/processing.md").read_text()
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "film")


def block(language: str, with_text: str) -> str:
    contents = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (only,) = (content for content in contents if with_text in content)
    return str(only)


def run(folder: Path, script: str, *arguments: str) -> str:
    done = run_program(
        [sys.executable, "-c", script, *arguments], cwd=folder, timeout=120, env=os.environ
    )
    return done.stdout


def prepare_served(root: Path, manifest: str, serving: str = "") -> ServeTask:
    """Prepare the model of a manifest, with `spec.serving` of another, from the files on its claim, for a server in the same folder."""
    space = Workplace(root)
    document = yaml.safe_load(manifest)
    if serving:
        document["spec"] |= yaml.safe_load(serving)["spec"]
    assert problems(document) == []
    shutil.copytree(root / "source", root / "processing/models")
    model = InferenceModel.model_validate(
        {**document, "metadata": {**document["metadata"], "namespace": "n", "uid": "u"}}
    )
    spec = model.spec
    task = PrepareTask(
        job="job-1",
        source_uri=spec.source.uri,
        recipe=recipe(spec, "cpu", space.probe(), []),
    )
    _, outcome = space.prepare(task)
    key = outcome.published.key
    assert space.fetch_artifact(key).code == 0
    options = spec.serving.options().options() | {"batch_size": 1}
    return ServeTask(
        model=model.metadata.name, revision="r1", prepared_key=key, backend="cpu", **options
    )


def infer(server: Server, document: dict[str, Any]) -> dict[str, Any]:
    answer = server.post(document)
    assert answer.status == 200, answer.body
    return {item["name"]: item["data"] for item in answer.json()["outputs"]}


def line_of_text(path: Path, *, upside_down: bool) -> None:
    image = Image.new("RGB", (192, 48), "white")
    font = ImageFont.load_default(size=30)
    ImageDraw.Draw(image).text((8, 4), "Enginewright", fill="black", font=font)
    (image.rotate(180) if upside_down else image).save(path, quality=95)


def test_an_image(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    shutil.copyfile(real_model("ch_ppocr_mobile_v2.0_cls_infer.onnx"), source / "text-angle.onnx")
    run(source, block("python", "# python steps.py"))
    task = prepare_served(tmp_path, block("yaml", "name: text-angle"))
    with Server(tmp_path, task) as server:
        script = block("python", "# python send.py").replace(
            "localhost:8080", f"127.0.0.1:{server.port}"
        )
        for upside_down, label in ((False, "upright"), (True, "upside down")):
            path = tmp_path / f"{label}.jpg"
            line_of_text(path, upside_down=upside_down)
            assert run(tmp_path, script, str(path)).strip() == label


def encoder() -> onnx.ModelProto:
    """Return a model with the inputs of MiniLM, which returns the largest token."""
    return parse_text(
        """(int64["batch", "tokens"] input_ids, int64["batch", "tokens"] attention_mask,
            int64["batch", "tokens"] token_type_ids) => (float["batch"] largest) {
        attended = Mul(input_ids, attention_mask) typed = Add(attended, token_type_ids)
        floats = Cast <to = 1> (typed)
        largest = ReduceMax <axes = [1], keepdims = 0> (floats) }"""
    )


def test_text(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(encoder(), source / "minilm.onnx")
    (source / "vocab.txt").write_text("\n".join(VOCABULARY))
    run(source, block("python", "# python tokenizer.py"))
    task = prepare_served(tmp_path, block("yaml", "name: minilm"))
    (document,) = re.findall(r"-d '(.*)'$", block("sh", "/minilm/infer"), re.MULTILINE)
    with Server(tmp_path, task) as server:
        assert infer(server, json.loads(document)) == {"largest": [7.0]}
        other = json.loads(document)
        for text, largest in (("good " * 10_000, 6.0), ("Ä GOÔD FÌLM", 7.0)):
            other["inputs"][0]["data"] = [text]
            assert infer(server, other) == {"largest": [largest]}


def embedder() -> onnx.ModelProto:
    """Return a model with the inputs of MiniLM, whose tokens' vectors are [token, 1]."""
    return parse_text(
        """(int64["batch", "tokens"] input_ids, int64["batch", "tokens"] attention_mask,
            int64["batch", "tokens"] token_type_ids) => (float["batch", "tokens", 2] last_hidden_state)
            <int64[1] last = {2}> {
        attended = Mul(input_ids, attention_mask) typed = Add(attended, token_type_ids)
        floats = Cast <to = 1> (typed) one = CastLike(attention_mask, floats)
        tokens = Unsqueeze(floats, last) ones = Unsqueeze(one, last)
        last_hidden_state = Concat <axis = 2> (tokens, ones) }"""
    )


def test_embeddings(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(embedder(), source / "minilm.onnx")
    (source / "vocab.txt").write_text("\n".join(VOCABULARY))
    run(source, block("python", "# python tokenizer.py"))
    serving = block("yaml", "pooling: Mean")
    task = prepare_served(tmp_path, block("yaml", "name: minilm"), serving)
    path, document = re.findall(
        r"localhost:8080(\S+) -d '(.*)'$", block("sh", "/v1/embeddings"), re.MULTILINE
    )[0]
    with Server(tmp_path, task) as server:
        answer = server.post(json.loads(document), path=path)
        assert answer.status == 200, answer.body
        vectors = [item["embedding"] for item in answer.json()["data"]]
    for vector, ids in zip(vectors, ((2, 5, 6, 7, 3), (2, 5, 7, 3)), strict=True):
        mean = sum(ids) / len(ids)
        length = (mean**2 + 1) ** 0.5
        assert vector == pytest.approx([mean / length, 1 / length])
