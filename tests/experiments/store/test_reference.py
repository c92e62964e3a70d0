"""Committed records in place of new runs."""

import json

from experiments.specs.expand import all_runs
from experiments.specs.schema import SCALES
from experiments.store import paths
from experiments.store.paths import REFERENCE_RUNS
from experiments.store.reference import reusable


def test_a_reference_record_is_reused_only_if_spec_and_data_agree(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "REFERENCE_RUNS", tmp_path / "reference")
    run = next(iter(all_runs("smoke").values()))
    data = tmp_path / "data"
    assert not reusable(run, data_folder=data)
    paths.committed(run.id).parent.mkdir()
    record = {"spec_hash": run.spec_hash, "spec": run.spec.to_json(), "data": {"hash": "h"}}
    paths.committed(run.id).write_text(json.dumps(record))
    assert reusable(run, data_folder=data)
    meta = data / run.data_label / "meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text('{"hash": "h"}')
    assert reusable(run, data_folder=data)
    meta.write_text('{"hash": "other"}')
    assert not reusable(run, data_folder=data)
    paths.committed(run.id).write_text(json.dumps({**record, "spec_hash": "old"}))
    meta.unlink()
    assert not reusable(run, data_folder=data)


def test_committed_records_answer_for_todays_runs(tmp_path):
    """A new key of the spec must not change the hash of runs that do not use it."""
    committed = {path.stem for path in REFERENCE_RUNS.glob("*.json")}
    assert committed
    planned = {k: run for scale in SCALES for k, run in all_runs(scale).items()}
    for run_id in committed:
        assert reusable(planned[run_id], data_folder=tmp_path)
