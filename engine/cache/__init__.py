"""Keys and values of computed tokens."""
