"""Elastic driver of a job whose ranks come and go: discovery, assignment, replacement, verdict."""
