"""The demo: the real language server, an editor that types by itself, and an example to type into."""
