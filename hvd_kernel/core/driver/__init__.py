"""Elastic worker that this process is: its channel to the driver, and its place in each generation."""
