rule prepare:
    """Turn text into tokens, once per dataset and vocabulary."""
    output:
        "resources/data/{data}/meta.json",
    log:
        "logs/prepare/{data}.log",
    params:
        python=PYTHON,
        code=code(*glob("experiments/data/*.py")),
        mirror=f"--mirror {shlex.quote(str(MIRROR))}" if MIRROR else "",
        online="" if config["offline"] else "--online",
    shell:
        "{params.python} -m experiments prepare --data {wildcards.data}"
        " {params.mirror} {params.online} 2>&1 | tee {log}"
