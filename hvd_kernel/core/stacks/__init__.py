"""Stack reports of this rank, for cells and for the agent of a script: calls, pending operations, dumps at a signal."""
