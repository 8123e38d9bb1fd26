"""Lets Spark find the format `tap` by itself: a module gives it one source."""

from headrace.spark.tap import TapSource as DefaultSource

__all__ = ["DefaultSource"]
