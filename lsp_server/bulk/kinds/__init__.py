"""The kinds of holes. Importing this registers all of them with ``lsp_server.bulk.holes``."""

from lsp_server.bulk.kinds import cursors, docstrings, markers, stubs

__all__ = ["cursors", "docstrings", "markers", "stubs"]
