from experiments.analysis import tables
from experiments.specs.planned import NO_STUDY
from experiments.store.collect import records_table


def test_the_sources_table_is_shown_whole():
    study = NO_STUDY.changed(source="Thangarasa et al., SPDF, UAI 2023, PMLR 216")
    empty = records_table([], study)
    table = tables.load("spdf_published").make(empty, empty, study).set_index(["model", "dataset"])
    assert len(table) == 8
    row = table.loc[("GPT-3 XL (1.3B)", "Curation Corpus")]
    assert row["metric"] == "perplexity" and row["75% (published)"] == "11.03 ± 0.02"
    small = table.loc[("GPT-2 Small (125M)", "E2E")]
    assert small.filter(like="published").tolist() == [
        "67.49 ± 0.60",
        "67.39 ± 0.38",
        "66.50 ± 0.85",
    ]
