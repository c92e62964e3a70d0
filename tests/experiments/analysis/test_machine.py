"""Records know their machine."""

import json

import pytest

from experiments import machine
from experiments.report.render import cost
from experiments.store.collect import records_table
from experiments.store.record import Record
from tests.experiments.analysis import kept

#: Facts of a machine, as `experiments.machine` gathers them.
MACHINE = {
    "processor": "Example CPU", "vendor": "Example", "family": 6, "model": 1, "stepping": 2,
    "isa": ["avx2"], "vector_bits": 256, "cores": 2, "num_threads": 1, "torch_isa": "AVX2",
    "versions": {"torch": "2.0"}, "kernels": {"build": "abc", "lanes": 8},
}  # fmt: skip
#: What /proc/cpuinfo says under a hypervisor that hides the names of processors.
CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: {model}
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: fpu sse avx avx2 fma {flags}

processor\t: 1
model name\t: another
"""


def here(tmp_path, monkeypatch, model=1, flags=""):
    file = tmp_path / f"cpuinfo-{model}"
    file.write_text(CPUINFO.format(model=model, flags=flags))
    monkeypatch.setattr(machine, "CPUINFO", file)
    return machine.facts(1)


def test_processors_of_one_name_threads_versions_and_kernels_are_told_apart(tmp_path, monkeypatch):
    old = here(tmp_path, monkeypatch, model=49)
    new = here(tmp_path, monkeypatch, model=17, flags="avx512f avx512_bf16")
    assert old["processor"] == new["processor"] == "AMD EPYC"
    assert (old["vendor"], old["family"], old["model"], old["stepping"]) == (
        "AuthenticAMD", 25, 49, 1,
    )  # fmt: skip
    assert (old["isa"], old["vector_bits"]) == (["avx", "avx2", "fma"], 256)
    assert "avx512_bf16" in new["isa"] and new["vector_bits"] == 512
    assert machine.key(old) != machine.key(new)
    assert "model 17" in machine.processor(new) and "avx512_bf16" in machine.processor(new)
    key = machine.key(MACHINE)
    for change in ({"num_threads": 2}, {"versions": {"torch": "2.1"}}, {"kernels": {}}):
        assert machine.key({**MACHINE, **change}) != key
    assert machine.key(json.loads(json.dumps(MACHINE))) == key
    facts = machine.facts(1)
    assert facts["versions"].keys() == {"torch", "numpy", "sparse_lib"}
    assert facts["torch_isa"] and facts["cores"] >= 1
    assert facts["kernels"]["build"] is None or facts["kernels"]["lanes"] in (4, 8, 16)
    assert json.loads(json.dumps(facts)) == facts


def test_records_without_a_machine_say_so_and_hours_are_counted_once():
    made = kept.make(seeds=1)[0] | {"machine": None}
    made["evaluation"]["machine"] = None
    record = Record(**made)
    assert record.machine is None
    assert record.machine_key == machine.NOT_RECORDED
    rows = records_table([record], kept.study([]))
    assert set(rows["machine"]) == {machine.NOT_RECORDED}
    assert rows["cpu"].iloc[0] == f"{record.cpu} (the rest not recorded)"
    assert cost([record])["machines"] == 0
    # Records of two machines that both call themselves Example CPU, and one of none.
    made = kept.make(seeds=3)
    machines = [MACHINE, {**MACHINE, "model": 99}, None]
    for record in made:
        record["machine"] = machines[record["spec"]["seed"]]
    made = [Record.model_validate(record) for record in made]
    hours = cost([*made, *made])
    assert (hours["runs"], hours["machines"]) == (18, 2)
    assert hours["training"] == pytest.approx(sum(record.wall_s for record in made) / 3600)
