"""Diagnosis of ranks: why they wait, why one died, who is slow, which values differ, what is wrong with the machine."""
