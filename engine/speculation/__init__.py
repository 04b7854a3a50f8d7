"""Guessing the next tokens, so that one pass verifies several. Never changes an answer."""
