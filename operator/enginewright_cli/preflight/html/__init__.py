"""The page of `--html`: Jinja2 templates that escape every value, and the geometry of its charts."""
