"""Sizes and durations as columns and messages show them."""


def format_size(size_bytes: int) -> str:
    """Return a size with two or three digits: 812 B, 3.5 MB, 120 MB, 1.2 GB."""
    value, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if value < 9.95 and unit != "B" else f"{value:.0f} {unit}"


def format_duration(seconds: float) -> str:
    """Return a duration for people: 0.5s, 12s, 3m20s, 1h5m."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
