"""Requests to ranks and their replies: cells, queries, values, and the connection that carries them."""
