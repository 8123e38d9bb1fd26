"""Lets Spark find the format `dcp` by itself: it imports top-level modules named pyspark_* and takes this name."""

from headrace.spark.source import DcpSource as DefaultSource

__all__ = ["DefaultSource"]
