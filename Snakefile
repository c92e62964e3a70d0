# Reproduce the studies: `snakemake reproduce` (profiles/default sets the cores).
from snakemake.utils import min_version

min_version("9.20")


configfile: f"{workflow.basedir}/experiments/config.yaml"


# Used with `--sdm apptainer`; without it the active environment runs everything.


container: "docker://python:3.12-slim"


report: "workflow/report/workflow.rst"


include: "workflow/rules/common.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"


rule reproduce:
    """Everything of the configured scale: train, evaluate, draw, report."""
    default_target: True
    input:
        f"reports/{SCALE}/index.html",


rule smoke:
    """The smallest run of everything, in two minutes."""
    input:
        "reports/smoke/index.html",


rule report:
    """The report pages of the configured scale, and Snakemake's own report beside them."""
    input:
        f"reports/{SCALE}/index.html",
        f"reports/{SCALE}/archive.html",


rule figures:
    """The figures of the configured scale."""
    input:
        chosen_figures(SCALE),


rule rerun:
    """Train runs again, and redo what depends on them: --config run=ID[,SEED...][,ID...]."""
    input:
        redone_pages,
