"""What the command line of `preflight` says, each argument and option once: typer reads them from the fields."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from enginewright_cli.options import Json
from enginewright_cli.preflight.config import ModelOptions
from enginewright_cli.preflight.stages import JOB_SECONDS


@dataclass(frozen=True)
class PreflightArguments:
    """The arguments and options of one command."""

    model: Annotated[
        list[str] | None,
        Argument(
            help="An .onnx file, a folder with one, or a URI; several may be given."
            " Default: the models of enginewright.toml."
        ),
    ] = None
    targets: Annotated[
        str | None,
        Option(
            "--target",
            help="Targets, comma-separated: cpu, l4, a100, rtx4090, sm75 to sm121, cpu:avx2, openvino, cuda."
            " Default: cpu, and sm89 where engines can be built.",
        ),
    ] = None
    backend: Annotated[
        str | None,
        Option(
            help="Backend on targets that have several, like spec.backends: openvino or cpu, tensorrt-rtx or"
            " tensorrt. Default: the one that a class prefers."
        ),
    ] = None
    precision: Annotated[
        str | None, Option(help="FP32, FP16, BF16, FP8 or INT8. Default: the model's own.")
    ] = None
    shapes: Annotated[
        list[str] | None,
        Option(
            help="Shapes of a dynamic input, INPUT=MIN:OPT:MAX, and of its values, @LOW..HIGH; repeat for"
            " each input."
        ),
    ] = None
    samples: Annotated[str | None, Option(help="Samples (.npz), like spec.parity.samples.")] = None
    calibration: Annotated[
        str | None, Option(help="Calibration data, like spec.quantization.calibration.")
    ] = None
    rest: Annotated[
        str | None,
        Option(
            help="FP32 or FP16, for what INT8 and FP8 do not quantize, like spec.quantization.rest."
        ),
    ] = None
    before: Annotated[
        list[str] | None,
        Option(
            metavar="STEP",
            help="A step before the model, like spec.processing.before; repeat for a second.",
        ),
    ] = None
    after: Annotated[
        list[str] | None,
        Option(
            metavar="STEP",
            help="A step after the model, like spec.processing.after; repeat for a second.",
        ),
    ] = None
    extensions: Annotated[
        list[str] | None,
        Option(
            "--extension",
            help="Operators that they need, like spec.extensions: ONNXRuntimeExtensions.",
        ),
    ] = None
    request: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="A request in JSON, as clients send it over HTTP, that each target answers.",
        ),
    ] = None
    target_opset: Annotated[
        int | None, Option(min=7, help="Opset to convert to, like spec.targetOpset.")
    ] = None
    runtime_version: Annotated[
        str | None,
        Option(help="ONNX Runtime that will serve, such as 1.24. Default: the installed one."),
    ] = None
    image: Annotated[
        str | None,
        Option(
            metavar="DIGEST",
            help="Runtime image that will serve, as the cluster's operator probed it.",
        ),
    ] = None
    budget: Annotated[
        str | None,
        Option(
            help="Allowed fallback to other providers: allow, or compute=2%,nodes=5%. Default: none."
        ),
    ] = None
    config_file: Annotated[
        Path | None,
        Option(
            "--config",
            metavar="FILE",
            help="Configuration. Default: enginewright.toml in this folder or a parent.",
        ),
    ] = None
    jobs: Annotated[
        int | None,
        Option(min=1, help="Maximum number of models at once. Default: as CPUs and memory allow."),
    ] = None
    timeout: Annotated[
        int, Option(min=1, help="Time limit of a Job in seconds, like spec.build.timeout.")
    ] = JOB_SECONDS
    no_cache: Annotated[bool, Option("--no-cache", help="Do not use results of earlier runs.")] = (
        False
    )
    html: Annotated[
        Path | None, Option(metavar="FILE", help="Write an HTML report to this file.")
    ] = None
    junit: Annotated[
        Path | None, Option(metavar="FILE", help="Write a JUnit XML report to this file.")
    ] = None
    manifest: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Write the InferenceModel to apply to this file, with proposals filled in.",
        ),
    ] = None
    fix: Annotated[
        Path | None,
        Option(
            metavar="OUT.onnx",
            help="Write the model that would be served, with a log of its changes.",
        ),
    ] = None
    json: Json = False
    quiet: Annotated[bool, Option("--quiet", help="Print nothing, only set the exit code.")] = False

    @property
    def options(self) -> ModelOptions:
        """Return the options of models, which precede those of the configuration."""
        given = {name: getattr(self, name) for name in ModelOptions.model_fields}
        given["targets"] = self.targets.split(",") if self.targets else None
        lists = {
            name: tuple(item) or None for name, item in given.items() if isinstance(item, list)
        }
        return ModelOptions.model_construct(**given | lists)
