"""What sources and the store have in common on the network: credentials, object stores, retries."""
