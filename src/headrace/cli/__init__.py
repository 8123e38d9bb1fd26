"""The command line. Each command is one module; this one puts them together."""

try:
    from headrace.cli.app import app, main
except KeyboardInterrupt:  # Ctrl-C in the tenth of a second that this takes, before `main` could see it
    raise SystemExit(130) from None

__all__ = ["app", "main"]
