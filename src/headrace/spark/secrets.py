"""Passwords that are not written into a program: in a variable or a file of the machine that the driver runs on."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.client import OptionError

_BYTES_MAX = 4096


def read_secret(password: str | None, variable: str | None, file: str | None) -> str | None:
    """Give the password that was told in one of three ways; None where none was."""
    if variable is not None:
        if variable not in os.environ:
            raise OptionError(f"option passwordEnv: there is no environment variable {variable} here")
        return os.environ[variable]
    if file is None:
        return password
    try:
        with Path(file).open("rb") as opened:
            return opened.readline(_BYTES_MAX).decode().rstrip("\r\n")
    except OSError as error:
        raise OptionError(f"option passwordFile: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OptionError(f"option passwordFile: {file} is not UTF-8") from None


__all__ = ["read_secret"]
