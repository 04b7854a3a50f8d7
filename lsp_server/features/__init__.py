"""Thin handlers: unwrap an LSP message, call one service, wrap the answer."""
