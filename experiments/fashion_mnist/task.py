"""The Fashion-MNIST task."""

from official_trainer.experiments.digits.task import DigitsTask


class FashionMnistTask(DigitsTask):
  """The network of the digits on images of clothes."""

  image_shape = (28, 28, 1)
