"""What telemetry costs: the same training loop on four ranks with telemetry on and off, interleaved. JSON on stdout."""
