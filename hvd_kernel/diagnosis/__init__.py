"""Diagnosis of ranks: why they wait, why a rank died, which are slow, which values differ; and of the machine."""
