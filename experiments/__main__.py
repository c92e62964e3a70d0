"""`python -m experiments`: the commands of `experiments.cli.app`."""

import sys

from experiments.preload import hand_over

hand_over(sys.argv[1:])

try:
    from experiments.cli.app import main  # its imports take time
except ModuleNotFoundError as error:
    if str(error.name).startswith("experiments"):
        raise
    sys.exit(
        f"Error: {error}: `make setup` installs it in .venv; `source .venv/bin/activate` first"
    )

main()
