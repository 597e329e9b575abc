"""Elastic job as it runs: agents, workers, sources of hosts and what is told of them; the driver decides."""
