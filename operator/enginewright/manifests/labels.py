"""Labels by which the operator, Services, users and monitoring find objects."""

from typing import Final

from enginewright.manifests.names import child_name

MODEL: Final = "enginewright.dev/model"
CLASS: Final = "enginewright.dev/class"
REVISION: Final = "enginewright.dev/revision"
# prepare | engine-lookup | engine | serve | canary | probe | collect
COMPONENT: Final = "enginewright.dev/component"
ENGINE: Final = "enginewright.dev/engine"  # name of the InferenceEngine that a Job works for
IMAGE: Final = "enginewright.dev/image"
QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"  # Kueue's, on Jobs
PLACEMENT: Final = "enginewright.dev/placement"  # annotation of a Job: hash of its JobTemplate
# annotation of a prepare Job: hash of all that models have in common that share its result
SHARED_PREPARATION: Final = "enginewright.dev/shared-preparation"
# annotation of a prepare Job: hash by which its result is found again for a model that is applied later
PREPARATION_RECORD: Final = "enginewright.dev/preparation-record"
REQUESTED_BY: Final = "enginewright.dev/requested-by"  # annotation of an engine: the first model
OUTCOME: Final = "enginewright.dev/outcome"  # annotation of a ControllerRevision
# of a model, first or last: when it moves to new images and classes
ROLLOUT_ORDER: Final = "enginewright.dev/rollout-order"
RETRY: Final = "enginewright.dev/retry"  # of a model: another value tries rejected backends again
REFRESH: Final = "enginewright.dev/refresh"  # annotation of a model: a changed value fetches again
# annotations of a model: the revision to roll out without analysis; the one to go back from and,
# after a space, the one to go back to
PROMOTE: Final = "enginewright.dev/promote"
ROLLBACK: Final = "enginewright.dev/rollback"
COLLECTION: Final = "enginewright.dev/collection"  # annotation of a Job: how the collection ended
# of a Job of an earlier release that collects a part of a bucket which several namespaces shared
STORE_GROUP: Final = "enginewright.dev/store-group"
# annotation of a namespace: size of its artefacts above which unneeded ones are removed earlier
STORE_MAX_SIZE: Final = "enginewright.dev/store-max-size"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OPERATOR: Final = "enginewright"
SERVE: Final = "serve"  # component of pods that serve
CANARY: Final = "canary"  # component of a canary's pods until they get requests; then serve
TRACK: Final = "enginewright.dev/track"  # canary: of pods that belong to a canary's Deployment
TRIAL: Final = "trial"  # component of pods with which earlier releases tried rejected backends


def model_value(model: str) -> str:
    """Return a model's name as a label value: names may be longer than values."""
    return child_name(model)


def of_model(model: str, component: str | None = None) -> dict[str, str]:
    """Return the labels of an object that belongs to one model."""
    labels = {MANAGED_BY: OPERATOR, MODEL: model_value(model)}
    return {**labels, COMPONENT: component} if component else labels


def of_engine(engine: str, accelerator_class: str, component: str) -> dict[str, str]:
    """Return the labels of an object that belongs to an InferenceEngine, and to no model."""
    return {MANAGED_BY: OPERATOR, ENGINE: engine, CLASS: accelerator_class, COMPONENT: component}


def serving_selector(model: str, accelerator_class: str | None = None) -> dict[str, str]:
    """Return the labels that select a model's serving pods, of all classes or of one; immutable."""
    selector = {MODEL: model_value(model), COMPONENT: SERVE}
    return {**selector, CLASS: accelerator_class} if accelerator_class else selector
