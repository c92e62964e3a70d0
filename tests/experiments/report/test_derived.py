"""Numbers of this project never stand as published ones."""

import re

import pytest

from experiments import published
from experiments.report import render

OWN = {"C027", "C035", "C038", "C070", "C071", "C082", "C084", "C085"}


@pytest.mark.parametrize("is_html", [False, True])
def test_what_was_derived_here_is_never_printed_as_published(is_html):
    claims = published.claims().set_index("claim_id")
    assert set(claims.index[claims["derived_here"] != ""]) == OWN
    fields = ["source", "published", "tested_as", "compared", "interval", "held_equal", "role"]
    fields += ["not_equal", "sides", "margin", "scaled_down", "links", "replications"]
    for name in sorted(OWN):
        own = claims.loc[name]
        row = dict.fromkeys(fields, "") | {"published": own["published"], "effect": None}
        row |= {"id": name, "statement": "S", "concerns": "", "verdict": "holds", "reason": "r"}
        rows = render.with_counter_evidence([row | {"behind": None}])
        template = f"parts.{'html' if is_html else 'md'}.j2"
        page = render.environment(html=is_html).get_template(template).module.ledger(rows)
        text = re.sub("<[^>]*>|&[^;]*;|[^a-z0-9]", "", str(page).lower())
        printed = re.sub("[^a-z0-9]", "", own["derived_here"].replace("'", "").lower())
        assert f"derivedhere{printed}" in text, (name, text)
        assert ("published" in text) == (own["published"] != "-")
        assert f"published{printed}" not in text


def test_no_published_value_says_that_it_is_of_this_project():
    claims = published.claims()
    for column in ("published", "provenance"):
        found = claims[claims[column].str.contains(r"\b(?:computed|here|derived|fit)\b")]
        assert found.empty, found["claim_id"].tolist()
