"""Midline's language server and command line. It never imports torch; the engine's service does."""
