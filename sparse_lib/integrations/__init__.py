"""Sparse training inside other libraries' training loops, one file per library.

Each file imports the library that it is named after, and nothing here imports the files:
``from sparse_lib.integrations.transformers import SparsityCallback``.
"""
