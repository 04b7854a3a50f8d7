"""``python -m lsp_server`` is ``midline``."""

from lsp_server.cli import main

if __name__ == "__main__":
    main()
