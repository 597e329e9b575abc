"""Display of many ranks' output as that of one cell: merging, rendering, errors, results."""
