"""Batch scripts: their head's directives (#SBATCH, #BSUB), and the lines that start ranks."""
