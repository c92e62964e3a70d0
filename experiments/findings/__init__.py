"""The sources' results and our tests of them: nine results and a few supporting claims.

``nine/*.yaml``
    One result a file, in the order of the sources: who published what where, and what is compared.
``supporting.yaml``
    At most sixteen further claims in the same frame.
``claim.py``
    What these files may say.
``evidence.py``, ``estimate.py``, ``gate.py``, ``pool.py``
    The runs of a scale; an interval and its word; whether the baseline is sound; many workloads at
    once.
``ledger.py``
    All of it for one scale: a `Finding` per comparison. docs/policy.md is the frame in words.
"""
