"""The built-in experiments: name -> the function that makes the config. Imports none of them."""

_HERE = "official_trainer.experiments"

EXPERIMENTS = {
  "digits/cnn": f"{_HERE}.digits.config:cnn",
  "digits/cnn_ema": f"{_HERE}.digits.config:cnn_ema",
  "digits/mlp": f"{_HERE}.digits.config:mlp",
  "fashion_mnist/cnn": f"{_HERE}.fashion_mnist.config:cnn",
}

FOR_TPU = frozenset({"digits/cnn", "digits/cnn_ema", "digits/mlp", "fashion_mnist/cnn"})
"""Those that claim to run on a TPU: `--mode=check_tpu` finds nothing in them, which a test proves."""
