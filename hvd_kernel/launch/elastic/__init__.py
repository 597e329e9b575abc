"""Elastic driver of a job whose number of ranks changes: discovery, assignment, replacement, verdict."""
