rule collect:
    """All records of a study as tidy tables."""
    input:
        own=lambda wildcards: REQUEST.records(wildcards.scale, wildcards.study)[0],
        committed=REQUEST.committed_files,
    output:
        records="results/{scale}/{study}/records.csv",
        curves="results/{scale}/{study}/curves.csv",
    log:
        "logs/collect/{scale}/{study}.log",
    localrule: True
    params:
        code=code.collecting_code_hash(),
        study=lambda wildcards: REQUEST.study_hash(wildcards.study, wildcards.scale),
        borrowed=lambda wildcards: code.digest(
            REQUEST.records(wildcards.scale, wildcards.study)[1]
        ),
    shell:
        "python -m experiments collect --committed --study {wildcards.study:q}"
        " --scale {wildcards.scale:q} -- {input.own:q} 2>&1 | tee {log:q}"


rule compute:
    """The tables of one computation, by the file of its name."""
    output:
        directory("results/{scale}/computations/{computation}"),
    log:
        "logs/compute/{scale}/{computation}.log",
    resources:
        mem_mb=4000,
        runtime=REQUEST.minutes,
    params:
        code=lambda wildcards: code.computation_code_hash(wildcards.computation),
        taken=["--committed"] if REQUEST.config["reuse"] == "only" else [],
    shell:
        "python -m experiments compute --scale {wildcards.scale:q} {params.taken:q}"
        " -- {wildcards.computation:q} > {log:q} 2>&1"


# A study's page lists its figures and tables, so each study has a rule.
for name, study in REQUEST.studies.items():

    rule:
        name:
            f"page_{name}"
        input:
            f"results/{{scale}}/{name}/records.csv",
            f"results/{{scale}}/{name}/curves.csv",
            lambda wildcards: REQUEST.evidence(wildcards.scale),
            lambda wildcards, name=name: REQUEST.computations(name, wildcards.scale),
        output:
            f"reports/{{scale}}/{name}/index.html",
            f"reports/{{scale}}/{name}/README.md",
            *(f"reports/{{scale}}/{name}/tables/{table}.csv" for table in study.tables),
            *(
                f"reports/{{scale}}/{name}/figures/{figure}.png"
                for figure in study.figures
            ),
        log:
            f"logs/report/{{scale}}/{name}.log",
        localrule: True
        params:
            study=name,
            made_from=lambda wildcards, name=name: REQUEST.page_hash(
                name, wildcards.scale
            ),
        shell:
            "python -m experiments report --study {params.study:q}"
            " --scale {wildcards.scale:q} > {log:q} 2>&1"


rule figure:
    """A figure for a paper, and the table that it draws."""
    input:
        "results/{scale}/{study}/records.csv",
        "results/{scale}/{study}/curves.csv",
        lambda wildcards: REQUEST.computations(wildcards.study, wildcards.scale),
    output:
        multiext("reports/{scale}/{study}/figures/{figure}", ".svg", ".pdf", ".csv"),
    log:
        "logs/report/{scale}/{study}-{figure}.log",
    localrule: True
    params:
        code=lambda wildcards: code.analysis_code_hash("figures", wildcards.figure),
    shell:
        "python -m experiments figure {wildcards.figure:q} --study {wildcards.study:q}"
        " --scale {wildcards.scale:q} --format svg --format pdf --format csv > {log:q} 2>&1"


rule index:
    """The front page of a scale."""
    input:
        lambda wildcards: REQUEST.pages(wildcards.scale),
    output:
        "reports/{scale}/index.html",
        "reports/{scale}/README.md",
        "reports/{scale}/claims.md",
        "reports/{scale}/replication.png",
        "reports/{scale}/findings.csv",
    log:
        "logs/report/{scale}/index.log",
    localrule: True
    params:
        code=REQUEST.index_hash(),
    shell:
        "python -m experiments index --scale {wildcards.scale:q} > {log:q} 2>&1"


rule publish:
    """Make the report of the configured scale the committed reference."""
    input:
        f"reports/{SCALE}/index.html",
    output:
        "reports/README.md",
    log:
        "logs/report/publish.log",
    localrule: True
    params:
        scale=SCALE,
    shell:
        "python -m experiments publish --scale {params.scale:q} > {log:q} 2>&1"
