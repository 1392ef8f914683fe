"""Arguments and options that several commands have."""

from typing import Annotated, Literal, TypeAlias

import typer

Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="Name of the InferenceModel.")]
Namespace: TypeAlias = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace. Default: the context's."),
]
Context: TypeAlias = Annotated[
    str | None, typer.Option(help="Context of the kubeconfig. Default: the current one.")
]
Image: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Image of the pod that mounts a claim. Default: a runtime image that the operator knows."
    ),
]
Json: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON, as docs/reference/commands.md describes.")
]
Format: TypeAlias = Annotated[
    Literal["json", "yaml"] | None,
    typer.Option(
        "--output", "-o", help="Print JSON or YAML, as docs/reference/commands.md describes."
    ),
]
