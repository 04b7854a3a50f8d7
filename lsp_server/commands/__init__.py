"""The command line's subcommands, one file each; imported only when chosen."""
