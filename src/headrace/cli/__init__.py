"""The command line. Each command is one module; this one puts them together."""

from headrace.cli.app import app, main

__all__ = ["app", "main"]
