"""Job tables: which fields and flags platforms' files and command lines have, and what each means here."""
