"""Job files and allocations on real hosts: where tasks go, their limits, steps in order, and ``hvdrun job``."""
