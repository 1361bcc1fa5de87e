"""The networks of the digits and Fashion-MNIST experiments."""

from collections.abc import Sequence

import tf_keras

NUM_CLASSES = 10

# Short runs need statistics that follow the weights quickly.
_BATCHNORM_MOMENTUM = 0.95


def build_cnn(
  image_shape: Sequence[int],
  *,
  filters: Sequence[int],
  dropout_rate: float,
  batchnorm_synchronized: bool,
) -> tf_keras.Model:
  """Builds 3x3 convolutions with batch normalisation, halved once, and a dense layer.

  Args:
    image_shape: height, width, channels.
    filters: channels of each convolution; the image is halved after the second one.
    dropout_rate: share of the features dropped before the dense layer.
    batchnorm_synchronized: whether batch statistics are taken over all replicas.

  Returns:
    A model from float32 [batch, *image_shape] to logits, float32 [batch, 10].
  """
  layers = tf_keras.layers
  model = tf_keras.Sequential([layers.Input(tuple(image_shape))], name="cnn")
  for number, channels in enumerate(filters, start=1):
    model.add(layers.Conv2D(channels, 3, padding="same", use_bias=False))
    model.add(layers.BatchNormalization(momentum=_BATCHNORM_MOMENTUM, synchronized=batchnorm_synchronized))
    model.add(layers.ReLU())
    if number == 2:
      model.add(layers.MaxPool2D())
  model.add(layers.Flatten())
  model.add(layers.Dropout(dropout_rate))
  # Logits stay in float32 under mixed precision.
  model.add(layers.Dense(NUM_CLASSES, dtype="float32"))
  return model


def build_mlp(image_shape: Sequence[int], *, hidden_units: Sequence[int]) -> tf_keras.Model:
  """Builds dense layers with ReLU; inputs and outputs as those of `build_cnn`."""
  layers = tf_keras.layers
  model = tf_keras.Sequential([layers.Input(tuple(image_shape)), layers.Flatten()], name="mlp")
  for units in hidden_units:
    model.add(layers.Dense(units, "relu"))
  model.add(layers.Dense(NUM_CLASSES, dtype="float32"))
  return model
