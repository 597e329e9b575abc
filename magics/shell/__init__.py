"""Integration with the notebook's shell: registration, completion, hints, prompts, transformation of cells."""
