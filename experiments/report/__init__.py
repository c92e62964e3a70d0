"""Pages for people: HTML and Markdown, rendered from tables, figures and the claims ledger."""
