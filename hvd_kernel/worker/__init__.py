"""Worker inside each rank: an ipyparallel engine with our own life line, cell execution and telemetry."""
