"""The HTTP service around one engine, its client and its launcher."""
