"""Spare processes: started ahead, their imports done, to take a failed rank's place at once."""
