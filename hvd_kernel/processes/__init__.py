"""Processes of ranks: what they may use, and what they use."""
