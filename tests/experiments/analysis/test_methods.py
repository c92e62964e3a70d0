"""Names and looks come from the facts of a study, whatever its methods are called."""

import matplotlib

from experiments.analysis import figures, style
from experiments.analysis.methods import Methods
from experiments.specs.lookup import planned_study
from experiments.specs.planned import NO_STUDY
from experiments.specs.run import Transform
from experiments.specs.schema import Method, Start
from tests.experiments.analysis import kept


def looks_of(**own):
    """How the methods of a study with these sections look."""
    methods = {
        key: Method.model_construct(**{"recipe": "all", "final_sparsity": 0.8, **settings})
        for key, settings in own.items()
    }
    return Methods(NO_STUDY.model_copy(update={"methods": methods}))


def masks(algorithm, **settings):
    return {"sparsity": {"algorithm": algorithm}, **settings}


def test_names_and_looks_follow_the_facts_of_a_study():
    looks = looks_of(**{f"new-{i}": masks("new", final_sparsity=0.8) for i in range(12)})
    assert len({looks[f"new-{i}"].color for i in range(12)}) == 12
    assert looks["new-0"].name == "new"  # the first of an algorithm has its name
    assert looks["new-1"].name == "new-1"
    second = {"final_sparsity": 0.0, "starts_from": Start(method="first")}
    looks = looks_of(first=masks("static", final_sparsity=0.75), second=second)
    assert looks.phases("second") == (0.75, "dense") and looks.phases("first") is None
    kast, rigl = masks("topkast", label="Top-KAST"), masks("rigl")
    wide = {**rigl, "transform": Transform(family="wide", sparsity=0.8)}
    high = {"final_sparsity": 0.9}
    sections = {"kast": kast, "kast90": kast | high, "fast": rigl, "fast90": rigl | high}
    looks = looks_of(**sections, again=rigl, wide=wide)
    assert looks["kast"].name == looks["kast90"].name == "Top-KAST"
    assert looks["kast"].color == looks["kast90"].color
    assert looks.treatment("kast90", 0.9) == "Top-KAST 90%"
    assert looks["fast90"].name == "RigL" and looks.line("fast90") == "fast"
    assert looks["again"].name == "again" and looks["again"].color != looks["fast"].color
    assert looks["wide"].name == "Sparse-Wide RigL"
    assert looks["never-heard-of"].name == "never-heard-of"
    looks = Methods(planned_study("sparsity_library", "small"))
    names = {"dense-control": "Dense, same steps", "set-retuned": "SET, retuned", "rigl95": "RigL"}
    assert {key: looks[key].name for key in names} == names
    assert looks["set-retuned"].color == looks["set"].color and looks["set-retuned"].marker == "*"
    assert looks["rigl95"].color == "#0072B2"
    looks = Methods(planned_study("spdf", "small"))
    assert looks.treatment("dense-dense", 0) == "Dense fine-tuned"
    assert looks.treatment("spdf-75", 0) == "SPDF 75%"
    assert looks.treatment("sparse-75", 0.75) == "Sparse fine-tuned 75%"


def test_every_mean_line_has_markers():
    frames = kept.frames(kept.make(seeds=2))
    looks = Methods(frames[2])
    colors = {looks[method].color for method in kept.METHODS}
    for name in ("loss_curves", "churn_itop", "schedules", "granet_vs_rigl"):
        with style.sheet(), matplotlib.rc_context({"figure.constrained_layout.use": False}):
            figure = figures.load(name).draw(*frames)
        for line in (line for axes in figure.axes for line in axes.lines):
            is_mean = line.get_color() in colors and line.get_alpha() is None
            if is_mean and len(line.get_xdata()) > 2:
                assert line.get_marker() not in ("None", None), name
