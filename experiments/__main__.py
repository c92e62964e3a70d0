"""`python -m experiments`: the commands of `experiments.cli.app`."""

import sys

from experiments.preload import hand_over

hand_over(sys.argv[1:])

from experiments.cli.app import main  # noqa: E402  its imports take time

main()
