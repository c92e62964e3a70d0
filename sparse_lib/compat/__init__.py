"""Compatibility with other libraries: their rules, config dialects and older APIs.

Importing this package registers the rules for ``compat`` arguments and the dialects for
`sparse_lib.configure`.
"""

from sparse_lib.compat import dialects, rules

__all__ = ["dialects", "rules"]
