"""A notebook's ranks on Ray: ``%%hvdrun --on ray``."""
