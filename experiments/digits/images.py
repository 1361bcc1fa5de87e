"""The handwritten digits that come with scikit-learn: 1,797 real images, no download."""

import numpy as np

from official_trainer.experiments.digits.config import TRAIN_EXAMPLES

SPLITS = ("train", "test")


def load_split(split: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns the images and labels of a split, in the order of the collection.

  The images are sorted by writer, so that 'test', the last 360, has writers that 'train' has not.

  Args:
    split: 'train' or 'test'.

  Returns:
    (uint8 [n, 8, 8, 1], int64 [n]). The 17 shades of the collection are spread over 0 to 255.
  """
  if split not in SPLITS:
    raise ValueError(f"The digits have the splits {', '.join(SPLITS)}, got '{split}'.")
  # Importing scikit-learn takes a second, which reading a prepared set should not pay.
  from sklearn.datasets import load_digits

  digits = load_digits()
  images = np.round(digits.images * (255 / 16)).astype(np.uint8)[..., np.newaxis]
  labels = digits.target.astype(np.int64)
  rows = slice(None, TRAIN_EXAMPLES) if split == "train" else slice(TRAIN_EXAMPLES, None)
  return images[rows], labels[rows]
