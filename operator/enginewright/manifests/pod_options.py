"""What serving pods have from the spec as it stands: the server's options, and what else their template has."""

from collections.abc import Mapping
from typing import Any, Final, Self

from enginewright_contract.serving_options import ServingOptions

from enginewright.api.inference_model import InferenceModelSpec
from enginewright.api.scalars import duration

STARTUP_SECONDS: Final = 600
GRACE_SECONDS: Final = 40  # the server drains for 25 s at most


class PodOptions(ServingOptions):
    """A new field has a default, which keeps the hashes of revisions without it."""

    max_queue: int  # no default: the hash of every revision has it
    auth_secret: str | None = None
    tls_secret: str | None = None  # else HTTP and gRPC in plain text
    pod_template: Mapping[str, Any] = {}  # as in the spec, camelCase
    sidecar_resources: Mapping[str, Any] = {}  # as in the spec
    sidecar_env: tuple[Mapping[str, Any], ...] = ()  # likewise
    startup_seconds: int | None = None  # if not the default; likewise below
    termination_seconds: int | None = None

    @property
    def startup(self) -> int:
        """Return the seconds that the server may take to start."""
        return self.startup_seconds or STARTUP_SECONDS

    @property
    def grace(self) -> int:
        """Return the seconds that a pod may take to terminate."""
        return self.termination_seconds or GRACE_SECONDS

    @classmethod
    def of(cls, spec: InferenceModelSpec) -> Self:
        """Return what a spec requests."""
        serving = spec.serving
        return cls(
            **serving.options().options(),
            auth_secret=serving.auth.secret_ref.name if serving.auth else None,
            tls_secret=serving.tls.secret_ref.name if serving.tls else None,
            pod_template=spec.pod_template.manifest(),
            sidecar_resources=serving.sidecar.resources.model_dump(
                mode="json", by_alias=True, exclude_defaults=True
            ),
            sidecar_env=tuple(variable.manifest() for variable in serving.sidecar.env),
            startup_seconds=_non_default(serving.startup_timeout, STARTUP_SECONDS),
            termination_seconds=_non_default(serving.termination_grace_period, GRACE_SECONDS),
        )


def _non_default(requested: str | None, default: int) -> int | None:
    seconds = int(duration(requested).total_seconds()) if requested else default
    return None if seconds == default else seconds
