"""Stand-ins for ``polyaxon`` and ``traceml`` in ranks where these are not installed, with tracking only."""
