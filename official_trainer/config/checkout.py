"""Makes the top-level folder `experiments/` importable as `official_trainer.experiments`.

An installed package has the folder inside it (see `package_dir` in setup.py) and needs none of
this. In a plain checkout the folder lies beside the package. Its one import name is inside the
package, so a user's own package called `experiments` keeps its name.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
from collections.abc import Sequence
from types import ModuleType

NAME = "official_trainer.experiments"


class ExperimentsFinder(importlib.abc.MetaPathFinder):
  """Finds exactly one package, `official_trainer.experiments`, in the folder given."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder

  def find_spec(
    self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
  ) -> importlib.machinery.ModuleSpec | None:
    """Returns where the package is, or None for any other name."""
    if fullname != NAME:
      return None
    return importlib.util.spec_from_file_location(
      NAME, self._folder / "__init__.py", submodule_search_locations=[str(self._folder)]
    )


def map_experiments(package: pathlib.Path) -> None:
  """Installs the finder when `package` belongs to a checkout; an installed one needs none.

  Args:
    package: folder of `official_trainer`.
  """
  folder = package.parent / "experiments"
  if (package / "experiments").is_dir() or not (folder / "manifest.py").is_file():
    return
  if not (package.parent / "setup.py").is_file():
    return
  sys.meta_path.append(ExperimentsFinder(folder))
