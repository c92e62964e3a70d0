"""Analysis of finished runs: records, statistics, claims, tables and figures.

Nothing here imports torch: every input is a JSON, JSONL or CSV file that a run wrote.
"""
