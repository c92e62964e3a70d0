rule prepare:
    """Turn text into tokens, or images into arrays, once per dataset and vocabulary."""
    output:
        "resources/data/{data}/meta.json",
    log:
        "logs/prepare/{data}.log",
    resources:
        mem_mb=8000,
        runtime=120,
    params:
        code=REQUEST.preparation_hash,
    shell:
        "python -m experiments prepare --data {wildcards.data:q} 2>&1 | tee {log:q}"
