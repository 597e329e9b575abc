"""Job tables: fields and flags of the platforms' files and command lines, and how they are used."""
