rule evaluate:
    """Score a trained model in a process of its own."""
    input:
        rules.train.output,
    output:
        "results/{scale}/runs/{run}/eval.json",
    log:
        "logs/evaluate/{scale}/{run}.log",
    resources:
        gpu=REQUEST.gpu,
        mem_mb=REQUEST.memory_mb,
        runtime=REQUEST.minutes,
    params:
        python=PYTHON,
        suite=lambda wildcards: REQUEST.run(wildcards).spec.suite,
        code=REQUEST.evaluation_hash,
    shell:
        "{params.python:q} -m experiments evaluate --run {wildcards.run:q} > {log:q} 2>&1"


rule record:
    """Merge what a run wrote into its small record."""
    input:
        rules.train.output.summary,
        rules.train.output.metrics,
        rules.evaluate.output,
    output:
        "results/{scale}/runs/{run}/record.json",
    log:
        "logs/record/{scale}/{run}.log",
    localrule: True
    params:
        python=PYTHON,
        code=code.collecting_code_hash(),
    shell:
        "{params.python:q} -m experiments record --run {wildcards.run:q} > {log:q} 2>&1"
