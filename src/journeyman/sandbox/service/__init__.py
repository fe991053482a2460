"""The sandbox service: an HTTP API over one node, with its state of record on disk."""
