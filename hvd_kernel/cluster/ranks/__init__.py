"""The ranks as the notebook's kernel holds them: who lives, who has died, who takes whose place."""
