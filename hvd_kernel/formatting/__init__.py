"""Formatting of ranks, numbers and files for users. Imports nothing of this package."""
