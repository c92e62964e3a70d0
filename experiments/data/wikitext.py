"""WikiText, articles of Wikipedia (Merity et al. 2016)."""

from experiments.data.hub import hub_dataset, one_row_each


def _wikitext_articles(rows: list[str]) -> list[str]:
    """Join the rows (lines) of WikiText into articles: each starts at a heading ` = Title = `."""
    articles: list[list[str]] = [[]]
    for position, row in enumerate(rows):
        if _is_title(row) and all(not rows[i].strip() for i in _neighbours(position, len(rows))):
            articles.append([])
        articles[-1].append(row.strip("\n"))
    return one_row_each(["\n".join(article) for article in articles])


def _is_title(row: str) -> bool:
    text = row.strip()
    return text.startswith("= ") and text.endswith(" =") and not text.startswith("= =")


def _neighbours(position: int, num_rows: int) -> list[int]:
    """Rows before and after: blank around a heading, unlike around a formula that looks so."""
    return [i for i in (position - 1, position + 1) if 0 <= i < num_rows]


DATASETS = (
    hub_dataset(
        "wikitext-2",
        "Salesforce/wikitext",
        config="wikitext-2-v1",
        license="CC BY-SA 3.0 and GFDL",
        to_documents=_wikitext_articles,
    ),
)
