"""Requests to ranks and what comes back: cells, questions, values, and the connection that carries them."""
