"""Formatting of ranks, numbers and files as people read them. A shared leaf."""
