rule collect:
    """All records of a study as tidy tables."""
    input:
        record_files,
    output:
        records="results/{scale}/{study}/records.csv",
        curves="results/{scale}/{study}/curves.csv",
    log:
        "logs/collect/{scale}/{study}.log",
    params:
        python=PYTHON,
        code=code("experiments/store/records.py"),
        study=study_hash,
    shell:
        "{params.python} -m experiments collect --study {wildcards.study}"
        " --scale {wildcards.scale} {input} > {log} 2>&1"


rule compute:
    """The tables of one computation, by the file of its name."""
    output:
        directory("results/{scale}/computations/{computation}"),
    log:
        "logs/compute/{scale}/{computation}.log",
    params:
        python=PYTHON,
        code=lambda wildcards: code(
            f"experiments/computations/{wildcards.computation}.py"
        ),
    shell:
        "{params.python} -m experiments compute {wildcards.computation}"
        " --scale {wildcards.scale} > {log} 2>&1"


rule claims:
    """A verdict for each claim of the study."""
    input:
        rules.collect.output,
        study_computations,
    output:
        "results/{scale}/{study}/claims.csv",
    log:
        "logs/claims/{scale}/{study}.log",
    params:
        python=PYTHON,
        code=code("experiments/analysis/claims/ledger.py"),
        published=files_hash("experiments/published/*.[cy]*"),
        study=study_hash,
    shell:
        "{params.python} -m experiments claims --study {wildcards.study}"
        " --scale {wildcards.scale} > {log} 2>&1"


rule table:
    """One table of a study, by the file of its name."""
    input:
        rules.collect.output,
        study_computations,
    output:
        "reports/{scale}/{study}/tables/{table}.csv",
    log:
        "logs/table/{scale}/{study}/{table}.log",
    params:
        python=PYTHON,
        code=lambda wildcards: code(f"experiments/analysis/tables/{wildcards.table}.py"),
    shell:
        "{params.python} -m experiments table {wildcards.table} --study {wildcards.study}"
        " --scale {wildcards.scale} > {log} 2>&1"


rule figure:
    """One figure of a study, by the file of its name: SVG, PNG and the data drawn."""
    input:
        rules.collect.output,
        study_computations,
    output:
        report(
            "reports/{scale}/{study}/figures/{figure}.svg",
            caption="../report/figure.rst",
            category="{study}",
            labels={"scale": "{scale}", "figure": "{figure}"},
        ),
        "reports/{scale}/{study}/figures/{figure}.png",
        "reports/{scale}/{study}/figures/{figure}.csv",
    log:
        "logs/figure/{scale}/{study}/{figure}.log",
    params:
        python=PYTHON,
        caption=lambda wildcards: caption(
            f"experiments/analysis/figures/{wildcards.figure}.py"
        ),
        code=lambda wildcards: code(
            f"experiments/analysis/figures/{wildcards.figure}.py"
        ),
    shell:
        "{params.python} -m experiments figure {wildcards.figure} --study {wildcards.study}"
        " --scale {wildcards.scale} > {log} 2>&1"


rule study_page:
    """The page of one study: HTML and its Markdown twin."""
    input:
        rules.collect.output,
        rules.claims.output,
        figures=study_figures,
        tables=study_tables,
    output:
        "reports/{scale}/{study}/index.html",
        "reports/{scale}/{study}/README.md",
    log:
        "logs/report/{scale}/{study}.log",
    params:
        python=PYTHON,
        code=code("experiments/report/render.py"),
        templates=files_hash("experiments/report/templates/*"),
        published=files_hash("experiments/published/*.[cy]*"),
    shell:
        "{params.python} -m experiments report --study {wildcards.study}"
        " --scale {wildcards.scale} > {log} 2>&1"


rule index:
    """The front page of a scale, and the command behind each row of its tables."""
    input:
        lambda wildcards: chosen_reports(wildcards.scale),
    output:
        "reports/{scale}/index.html",
        "reports/{scale}/README.md",
        "reports/{scale}/commands.csv",
    log:
        "logs/report/{scale}/index.log",
    params:
        python=PYTHON,
        code=code("experiments/report/render.py"),
        templates=files_hash("experiments/report/templates/*"),
        published=files_hash("experiments/published/*.[cy]*"),
    shell:
        "{params.python} -m experiments index --scale {wildcards.scale} > {log} 2>&1"


rule archive:
    """Snakemake's own report: figures with captions by study, rules and run times."""
    input:
        "reports/{scale}/index.html",
    output:
        "reports/{scale}/archive.html",
    log:
        "logs/report/{scale}/archive.log",
    params:
        python=PYTHON,
        code=code("experiments/report/archive.py"),
        study=config["study"],
    shell:
        "{params.python} -m experiments archive --scale {wildcards.scale}"
        " --study {params.study} > {log} 2>&1"


rule publish:
    """Make the report of the configured scale the committed reference."""
    input:
        f"reports/{SCALE}/index.html",
    output:
        "reports/index.html",
        "reports/README.md",
        "reports/commands.csv",
    log:
        "logs/report/publish.log",
    params:
        python=PYTHON,
        scale=SCALE,
    shell:
        "{params.python} -m experiments publish --scale {params.scale} > {log} 2>&1"
