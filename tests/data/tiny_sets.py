"""TFDS builders of a few examples, for what the digits do not have."""

import numpy as np
import tensorflow_datasets as tfds

NUM_EXAMPLES = 6


class TinyNested(tfds.core.GeneratorBasedBuilder):
  """Every kind of feature of a fixed shape, also inside another."""

  VERSION = tfds.core.Version("1.0.0")

  def _info(self):
    return tfds.core.DatasetInfo(
      builder=self,
      features=tfds.features.FeaturesDict({
        "id": tfds.features.Scalar(np.int32),
        "name": tfds.features.Text(),
        "pair": {
          "flag": tfds.features.Scalar(np.bool_),
          "matrix": tfds.features.Tensor(shape=(2, 3), dtype=np.float32),
        },
        "image": tfds.features.Image(shape=(2, 2, 3)),
      }),
    )  # fmt: skip

  def _split_generators(self, dl_manager):
    return {"train": self._generate_examples()}

  def _generate_examples(self):
    for i in range(NUM_EXAMPLES):
      yield i, nested_example(i)


def nested_example(i: int) -> dict:
  return {
    "id": i,
    "name": "x" * i,
    "pair": {"flag": i % 2 == 0, "matrix": np.full((2, 3), i, np.float32)},
    "image": np.full((2, 2, 3), i, np.uint8),
  }


class TinyPhotos(tfds.core.GeneratorBasedBuilder):
  """Images and boxes whose number and size differ."""

  VERSION = tfds.core.Version("1.0.0")

  def _info(self):
    return tfds.core.DatasetInfo(
      builder=self,
      features=tfds.features.FeaturesDict({
        "image": tfds.features.Image(shape=(None, None, 3)),
        "boxes": tfds.features.Sequence({"label": tfds.features.Scalar(np.int64)}),
      }),
    )  # fmt: skip

  def _split_generators(self, dl_manager):
    return {"train": self._generate_examples()}

  def _generate_examples(self):
    for i in range(NUM_EXAMPLES):
      image = np.full((2 + i, 3, 3), i, np.uint8)
      yield i, {"image": image, "boxes": {"label": list(range(i))}}


class TinyRace(tfds.core.GeneratorBasedBuilder):
  """A set that another process finishes first, while this one is still being written."""

  VERSION = tfds.core.Version("1.0.0")
  other_process = None

  def _info(self):
    features = tfds.features.FeaturesDict({"id": tfds.features.Scalar(np.int64)})
    return tfds.core.DatasetInfo(builder=self, features=features)

  def _split_generators(self, dl_manager):
    return {"train": self._generate_examples()}

  def _generate_examples(self):
    other, TinyRace.other_process = TinyRace.other_process, None
    if other is not None:
      other()
    for i in range(NUM_EXAMPLES):
      yield i, {"id": i}
