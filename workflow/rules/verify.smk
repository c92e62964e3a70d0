rule verify_run:
    """Train one committed run again, into a folder of its own."""
    input:
        REQUEST.verify_inputs,
    output:
        "results/{scale}/verify/{run}/record.json",
    log:
        "logs/verify/{scale}/{run}.log",
    resources:
        mem_mb=REQUEST.memory_mb,
        runtime=REQUEST.minutes,
    params:
        spec=lambda wildcards: REQUEST.run(wildcards).spec.hash,
        code=lambda wildcards: [
            code.training_code_hash(REQUEST.run(wildcards).spec),
            REQUEST.evaluation_hash(wildcards),
        ],
    shell:
        "python -m experiments again --run {wildcards.run:q} > {log:q} 2>&1"


rule verify:
    """Train the committed runs that are asked for again, and say whether they come out as recorded:
    --config scale=quick, study=NAME or run=ID[,ID...]."""
    input:
        lambda wildcards: REQUEST.verified(),
    log:
        f"logs/verify/{SCALE}.log",
    localrule: True
    params:
        named=REQUEST.verify_options(),
    shell:
        "python -m experiments verify --trained {params.named:q} 2>&1 | tee {log:q}"
