"""One line of the stages that run for a model, which both displays of progress show."""


def update_line(stages: dict[str, str], targets: str, stage: str) -> str:
    """Record the stage that starts for comma-separated `targets`; return the stages of all Jobs, for people."""
    current = set(targets.split(", "))
    for earlier in [item for item in stages if current & set(item.split(", ")) and item != targets]:
        del stages[earlier]
    stages[targets] = stage
    return "  ".join(f"{key}: {running}" for key, running in stages.items())
