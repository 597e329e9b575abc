"""What ``import polyaxon`` and ``import traceml`` give in ranks where these are not installed: their tracking alone."""
