"""Completing many requests at once, while nobody waits: order, batch size, and a process that does it."""
