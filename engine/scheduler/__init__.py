"""Who computes how many tokens next. Light: imports no torch."""
