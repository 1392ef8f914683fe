"""From a spec to a recipe, and to the volumes that stage `fetch` reads from."""

from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from enginewright_contract import task
from enginewright_contract.images import DEVICE_BACKENDS, ImageFacts
from enginewright_contract.precisions import why_unsupported
from enginewright_contract.schemes import scheme_of

from enginewright.api.accelerator_class import AcceleratorClass
from enginewright.api.inference_model import (
    CalibrationSpec,
    InferenceModelSpec,
    PreprocessingSpec,
    ProcessingStepSpec,
)
from enginewright.api.scalars import share
from enginewright.manifests.prepare_job import Input
from enginewright.plan.resolve.devices import int8_products

# Precisions for the automatic choice. Without calibration data, ranges would be guesses; and CPUs
# compute half precision in single precision, so it is not faster there.
_CALIBRATED: Final[tuple[task.Precision, ...]] = ("INT8", "FP8")
_HALF: Final[tuple[task.Precision, ...]] = ("FP16", "BF16")


def recipe(
    spec: InferenceModelSpec,
    backend: str,
    image: ImageFacts,
    classes: Collection[AcceleratorClass],
) -> task.Recipe:
    """Return everything that decides how the model is prepared."""
    samples = spec.parity.samples
    precision: task.Precision | None = spec.precision.value if spec.precision else None
    allowed = () if spec.precision else _allow_precisions(spec, backend, classes)
    return task.Recipe(
        backend=backend,
        backend_version=image.version_beside_ort(backend),
        ort_version=image.ort_version,
        max_opset=image.max_opset,
        max_ir_version=image.max_ir_version,
        shapes=_shapes(spec),
        target_opset=spec.target_opset,
        precision=precision,
        allowed_precisions=allowed,
        quantization=_quantization(spec),
        int8_products=int8_products(backend, (precision, *allowed), classes),
        extensions=tuple(
            task.Extension(
                uri=extension.uri or "",
                sha256=(extension.sha256 or "").lower(),
                type=extension.type,
            )
            for extension in spec.extensions
        ),
        processing=_processing(spec),
        samples_uri=samples.uri if samples else None,
        rtol=_number(spec.parity.rtol),
        atol=_number(spec.parity.atol),
        outputs=tuple(
            task.OutputTolerance(
                name=output.name,
                rtol=_number(output.rtol),
                atol=_number(output.atol),
                accept_unjudged=output.accept_unjudged,
            )
            for output in spec.parity.outputs
        ),
    )


def why_not(
    spec: InferenceModelSpec, backend: str, classes: Iterable[AcceleratorClass]
) -> str | None:
    """Return why a class cannot run the requested precision, if one cannot."""
    if spec.precision is None:
        return None
    for device_class in classes:
        capability = device_class.spec.compute_capability
        if reason := why_unsupported(spec.precision.value, capability, backend):
            return f"accelerator class {device_class.metadata.name} cannot run {spec.precision.value}: {reason}"
    return None


def find_rest(spec: InferenceModelSpec) -> task.Rest | None:
    """Return the precision of what is not quantized, unless it is FP32."""
    if spec.quantization is None or spec.quantization.rest == "FP32":
        return None
    return spec.quantization.rest


def inputs(spec: InferenceModelSpec) -> tuple[Input, ...]:
    """Return the claims and Secrets that stage `fetch` reads from."""
    samples = spec.parity.samples
    calibration = spec.quantization.calibration if spec.quantization else None
    sources = [
        ("source", spec.source, task.SOURCE_PATH, task.CREDENTIALS_PATH),
        ("samples", samples, task.SAMPLES_PATH, task.SAMPLES_CREDENTIALS_PATH),
        ("calibration", calibration, task.CALIBRATION_PATH, task.CALIBRATION_CREDENTIALS_PATH),
    ]
    mounts = []
    for name, where, path, credentials in sources:
        if where is None:
            continue
        if claim := _claim(where.uri):
            mounts.append(Input(name, path, claim=claim))
        if where.secret_ref:
            prefix = "" if name == "source" else f"{name}-"
            mounts.append(Input(f"{prefix}credentials", credentials, secret=where.secret_ref.name))
    steps = steps_of(spec)
    for name, step in steps.items():
        if step.secret_ref:
            path = f"{task.PROCESSING_CREDENTIALS_PATH}/{name}"
            mounts.append(Input(f"{name}-credentials", path, secret=step.secret_ref.name))
    libraries = (extension.uri for extension in spec.extensions if extension.uri)
    mounts += _claims("extensions", task.EXTENSIONS_PATH, libraries)
    mounts += _claims(
        "processing",
        task.PROCESSING_PATH,
        (processing_step_spec.uri for processing_step_spec in steps.values()),
    )
    return tuple(mounts)


def steps_of(spec: InferenceModelSpec) -> dict[str, ProcessingStepSpec]:
    """Return the steps of spec.processing by name, as `contract.task.Processing` has them."""
    processing = _processing(spec)
    if spec.processing is None or processing is None:
        return {}
    steps = spec.processing.before + spec.processing.after
    return dict(zip(processing.steps(), steps, strict=True))


def steps_sha256(spec: InferenceModelSpec) -> dict[str, str]:
    """Return the digests in spec.processing, by name of the step."""
    return {name: step.sha256.lower() for name, step in steps_of(spec).items() if step.sha256}


def _processing(spec: InferenceModelSpec) -> task.Processing | None:
    if spec.processing is None:
        return None
    return task.Processing(
        before=tuple(processing_step_spec.uri for processing_step_spec in spec.processing.before),
        after=tuple(processing_step_spec.uri for processing_step_spec in spec.processing.after),
    )


def _claims(name: str, folder: str, uris: Iterable[str]) -> list[Input]:
    claims = dict.fromkeys(claim for uri in uris if (claim := _claim(uri)))
    return [
        Input(f"{name}-{number}", f"{folder}/{claim}", claim=claim)
        for number, claim in enumerate(claims)
    ]


def _allow_precisions(
    spec: InferenceModelSpec, backend: str, classes: Iterable[AcceleratorClass]
) -> tuple[task.Precision, ...]:
    calibrated = spec.quantization is not None and spec.quantization.calibration is not None
    capabilities = [device_class.spec.compute_capability for device_class in classes]
    return tuple(
        precision
        for precision in (
            *(_HALF if backend in DEVICE_BACKENDS else ()),
            *(_CALIBRATED if calibrated else ()),
        )
        if not any(why_unsupported(precision, capability, backend) for capability in capabilities)
    )


def _quantization(spec: InferenceModelSpec) -> task.Quantization | None:
    quantization = spec.quantization
    if quantization is None:
        return None
    return task.Quantization(
        calibration=_calibration(quantization.calibration) if quantization.calibration else None,
        per_channel=quantization.per_channel,
        max_excluded_share=share(quantization.max_excluded_share) or 0.0,
        rest=find_rest(spec),
    )


def _calibration(spec: CalibrationSpec) -> task.Calibration:
    return task.Calibration(
        uri=spec.uri,
        samples=spec.samples,
        method=spec.method,
        preprocessing=_preprocessing(spec.preprocessing) if spec.preprocessing else None,
    )


def _preprocessing(spec: PreprocessingSpec) -> task.Preprocessing:
    return task.Preprocessing(
        width=spec.width,
        height=spec.height,
        layout=spec.layout,
        color=spec.color,
        scale=float(spec.scale),
        mean=tuple(map(float, spec.mean)),
        std=tuple(map(float, spec.std)),
    )


def _shapes(spec: InferenceModelSpec) -> tuple[task.ShapeProfile, ...]:
    return tuple(
        task.ShapeProfile(
            input=shape.input,
            min=shape.min,
            opt=shape.opt,
            max=shape.max,
            low=_number(shape.range.low) if shape.range else None,
            high=_number(shape.range.high) if shape.range else None,
        )
        for shape in spec.shapes
    )


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)


def _claim(uri: str) -> str | None:
    scheme = scheme_of(uri)
    return urlsplit(uri).netloc if scheme and scheme.is_mounted else None
