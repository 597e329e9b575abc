"""Resources of a rank: limits of cores and memory, and how they are kept."""
