"""All access to the API server: plain dicts in, plain dicts out, errors of our own."""
