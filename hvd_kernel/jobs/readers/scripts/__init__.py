"""Batch scripts: the directives in the head (#SBATCH, #BSUB), and the lines that start ranks."""
