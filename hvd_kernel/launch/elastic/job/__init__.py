"""Elastic job as it runs: agents, workers, host sources and reports; the driver decides."""
