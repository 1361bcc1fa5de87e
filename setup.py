"""Builds the `official-trainer` distribution.

The built-in experiments live in the top-level folder `experiments/`, where a reader looks for them,
and are imported as `official_trainer.experiments`: a user's own package named `experiments` stays
reachable.
"""

from setuptools import find_packages, setup


def packages() -> list[str]:
  """Returns the import names of the library's packages and of the mapped experiments."""
  library = find_packages(include=["official_trainer", "official_trainer.*"])
  experiments = [f"official_trainer.experiments.{name}" for name in find_packages("experiments")]
  return [*library, "official_trainer.experiments", *experiments]


setup(
  name="official-trainer",
  version="0.1.0",
  description="A trainer for TensorFlow 2 on Orbit: a run is a function of its config.",
  license="Apache-2.0",
  python_requires=">=3.10,<3.13",
  packages=packages(),
  package_dir={
    "official_trainer": "official_trainer",
    "official_trainer.experiments": "experiments",
  },
  package_data={
    "official_trainer": ["py.typed", "**/*.yaml"],
    "official_trainer.experiments": ["**/*.yaml"],
  },
  install_requires=[
    # Brings the modules `official` and `orbit`. PyPI's package named `orbit` is an unrelated one.
    "tf-models-official~=2.20.0",
    "tensorflow~=2.20.0",
    "tf-keras~=2.20.0",
    "tensorflow-datasets>=4.9.10",
    "array_record",
    # tensorflow-datasets imports it when a set is prepared, and does not declare it.
    "importlib_resources",
    "gin-config>=0.5.0",
    "absl-py>=1.4.0",
    "pydantic>=2.6",
    "PyYAML>=6.0",
    "rich>=13.0",
    "matplotlib>=3.8",
    "scikit-learn>=1.4",
  ],
  extras_require={
    "test": [
      "pytest>=8.0",
      "pytest-xdist>=3.5",
      # The tests that tf-models-official ships import it.
      "portpicker",
      "ruff",
      "mypy",
      "types-PyYAML",
    ],
  },
  entry_points={
    "console_scripts": [
      "official-trainer=official_trainer.train:console_main",
      "official-trainer-cluster=official_trainer.launcher:console_main",
    ],
  },
)
