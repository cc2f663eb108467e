"""The `bayplan` command."""
