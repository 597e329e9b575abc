"""Display of many ranks' output as one cell's: merging, rendering, errors, results."""
