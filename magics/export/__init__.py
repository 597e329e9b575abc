"""Export of the cells that ran on the ranks, as a script for hvdrun."""
