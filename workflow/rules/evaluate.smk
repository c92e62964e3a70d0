rule evaluate:
    """Score a trained model in a process of its own."""
    input:
        rules.train.output,
    output:
        "results/{scale}/runs/{run}/eval.json",
    log:
        "logs/evaluate/{scale}/{run}.log",
    params:
        python=PYTHON,
        suite=lambda wildcards: ALL_RUNS[wildcards.run].spec.suite,
        code=lambda wildcards: plan.evaluation_code_hash(ALL_RUNS[wildcards.run].spec),
    shell:
        "{params.python} -m experiments evaluate --run {wildcards.run} > {log} 2>&1"


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
    params:
        python=PYTHON,
        code=code("experiments/store/records.py"),
    shell:
        "{params.python} -m experiments record --run {wildcards.run} > {log} 2>&1"
