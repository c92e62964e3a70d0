"""The packages of the studies' distribution: this folder is `experiments` itself."""

from setuptools import find_namespace_packages, setup

inner = find_namespace_packages(exclude=["build*", "*.egg-info"])
setup(
    packages=["experiments", *(f"experiments.{name}" for name in inner)],
    package_dir={"experiments": "."},
    script_name="setup.py",  # so that it is left out, whoever runs it
)
