"""Where this rank is, for cells and for the agent of a script: calls, operations that wait, stacks at a signal."""
