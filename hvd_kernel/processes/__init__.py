"""Processes of ranks: how they are started, supervised, limited, connected and stopped."""
