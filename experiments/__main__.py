"""`python -m experiments`: the commands of `experiments.cli.app`."""

from experiments.cli.app import main

main()
