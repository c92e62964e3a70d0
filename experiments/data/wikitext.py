"""WikiText, articles of Wikipedia (Merity et al. 2016)."""

from experiments.data.hub import hub_dataset, one_row_each


def _wikitext_articles(rows: list[str]) -> list[str]:
    """Join the rows (lines) of WikiText into articles: each starts at a heading ` = Title = `.

    Rows around a heading are blank, unlike those around a formula that looks so.
    """
    articles: list[list[str]] = [[]]
    for before, row, after in zip(["", *rows], rows, [*rows[1:], ""], strict=False):
        text = row.strip()
        is_title = text.startswith("= ") and text.endswith(" =") and not text.startswith("= =")
        if is_title and not before.strip() and not after.strip():
            articles.append([])
        articles[-1].append(row.strip("\n"))
    return one_row_each(["\n".join(article) for article in articles])


DATASETS = (
    hub_dataset(
        "wikitext-2",
        "Salesforce/wikitext",
        config="wikitext-2-v1",
        license="CC BY-SA 3.0 and GFDL",
        to_documents=_wikitext_articles,
    ),
)
