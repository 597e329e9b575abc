"""Output of a rank: what it prints and displays, its log, and what of it goes to the notebook."""
