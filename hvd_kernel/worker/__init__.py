"""Worker inside each rank: an ipyparallel engine that exits with its parent, runs cells and sends telemetry."""
