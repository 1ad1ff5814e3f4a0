"""Durations as text, for progress, tables and pages."""


def duration(seconds: float) -> str:
    """Return a duration as text: 12 s, 3 min 05 s or 1 h 05 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
