"""Pool of warm ranks: a cluster that is started ahead, for the next notebook of its user."""
