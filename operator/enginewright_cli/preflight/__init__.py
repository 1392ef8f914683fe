"""`enginewright preflight`: what the Jobs would find, by running their own stages on this machine."""
