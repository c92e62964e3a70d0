# Reproduce the studies: `snakemake reproduce` (profiles/default sets the cores).
from snakemake.utils import min_version

min_version("9.20")


configfile: f"{workflow.basedir}/config/config.yaml"


# Used with `--sdm apptainer`, made from the Dockerfile; else the active environment runs everything.


container: "sparse-lib.sif"


include: "workflow/rules/common.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/verify.smk"


rule reproduce:
    """Everything of the configured scale: train, evaluate, draw, report."""
    default_target: True
    input:
        lambda wildcards: REQUEST.targets(SCALE),
    localrule: True


rule figures:
    """The figures of the configured scale as SVG and PDF, and their data as CSV."""
    input:
        lambda wildcards: REQUEST.figures(SCALE),
    localrule: True


rule rerun:
    """Train runs again, and redo their pages: --config run=ID[,SEED...][,ID...].

    The front page, where there is one, is written anew from what is there.
    """
    input:
        lambda wildcards: REQUEST.rerun_pages(),
    log:
        f"logs/report/{SCALE}/rerun.log",
    localrule: True
    params:
        scale=SCALE,
    shell:
        "test ! -e reports/{params.scale:q}/index.html"
        " || python -m experiments index --scale {params.scale:q} > {log:q} 2>&1"
