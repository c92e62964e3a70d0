rule prepare:
    """Turn text into tokens, once per dataset and vocabulary."""
    output:
        "resources/data/{data}/meta.json",
    log:
        "logs/prepare/{data}.log",
    params:
        python=PYTHON,
        code=code(*glob("experiments/data/*.py")),
    shell:
        "{params.python} -m experiments prepare --data {wildcards.data} 2>&1 | tee {log}"
