"""Swim lanes of the ranks: what their programs and the core did in the last seconds."""
