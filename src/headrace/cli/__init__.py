"""The command line. Each command is one module; this one puts them together."""

import signal
import threading

# Ctrl-C in the tenth of a second that the imports take is held back: in the middle of one it ends in any kind of error.
_HELD = {signal.SIGINT} if threading.current_thread() is threading.main_thread() else set()
_before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
try:
    try:
        from headrace.cli.app import app, main
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, _before)
except KeyboardInterrupt:
    raise SystemExit(130) from None

__all__ = ["app", "main"]
