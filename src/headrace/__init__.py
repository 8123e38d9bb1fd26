"""headrace: change streams of the memcached/Couchbase family, both ends.

This package itself holds nothing but its version. What it is made of, low to high, stands in
`docs/architecture.md`; import from the subpackages, e.g. `headrace.wire`.
"""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
