"""The nine results and the supporting claims as they are committed."""

import pytest

from experiments.errors import UserError
from experiments.findings import claim
from experiments.specs.read import load_study, study_names


def test_nine_results_name_what_exists_and_a_typo_is_one_sentence(tmp_path, monkeypatch):
    assert len(claim.nine()) == 9
    for result in (*claim.nine(), *claim.supporting()):
        assert result.study in study_names()
        study = load_study(result.study)
        for comparison in result.comparisons():
            for method in comparison.a[-1:] + comparison.b[-1:]:
                assert method in study.methods, f"{result.name}: {method}"
    text = (claim.NINE / "1_set.yaml").read_text().replace("better: lower", "better: less")
    (tmp_path / "1.yaml").write_text(text)
    monkeypatch.setattr(claim, "NINE", tmp_path)
    claim.nine.cache_clear()
    with pytest.raises(UserError, match="1.yaml: outcome.better"):
        claim.nine()
    claim.nine.cache_clear()
