"""What runs in a serving pod: the server, and the sidecar that continuously verifies it."""
