"""The digits as a TFDS data set, `sklearn_digits`. Importing this module registers it."""

from collections.abc import Iterator
from typing import Any

import tensorflow_datasets as tfds

from official_trainer.experiments.digits.images import SPLITS, load_split


class SklearnDigits(tfds.core.GeneratorBasedBuilder):
  """Optical recognition of handwritten digits (Alpaydin and Kaynak 1998), as in scikit-learn."""

  VERSION = tfds.core.Version("1.0.0")

  def _info(self) -> tfds.core.DatasetInfo:
    # Not `dataset_info_from_configs`, which looks for metadata files beside the module.
    return tfds.core.DatasetInfo(
      builder=self,
      description="1,797 images of handwritten digits; other writers in 'test' than in 'train'.",
      homepage="https://archive.ics.uci.edu/dataset/80/",
      features=tfds.features.FeaturesDict({
        "image": tfds.features.Image(shape=(8, 8, 1)),
        "label": tfds.features.ClassLabel(num_classes=10),
      }),
      supervised_keys=("image", "label"),
    )  # fmt: skip

  def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Any]:
    del dl_manager  # Nothing to download.
    return {split: self._generate_examples(split) for split in SPLITS}

  def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
    images, labels = load_split(split)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
      yield number, {"image": image, "label": int(label)}
