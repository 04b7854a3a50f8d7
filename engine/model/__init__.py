"""The decoder and its layers."""
