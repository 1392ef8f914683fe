"""`enginewright serve`: the server and the sidecar of a serving pod on this machine."""
