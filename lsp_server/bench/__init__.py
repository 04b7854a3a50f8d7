"""The keystroke benchmark: somebody types into real files, and the real language server is asked after every key."""
