"""Inspection of a rank's variables: names, summaries, digests, values, replication."""
