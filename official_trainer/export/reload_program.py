"""The program that loads an export as its users do: with TensorFlow alone. Run with `python -c`, never imported.

Its arguments are the folder of a SavedModel and a folder for the exchange of tensors, with `request.json`:
{"intra": threads, "inter": threads, "signatures": {signature: {input: [file, dtype]}}}. It writes `answer.json`:
{signature: {output: [file, dtype]}}.
"""

import json
import os
import sys


def main(folder, exchange):
  # Whoever imported it would show that the export does not stand alone.
  sys.modules["official_trainer"] = None
  import tensorflow as tf

  def path(name):
    return os.path.join(exchange, name)

  def read(name, dtype):
    return tf.io.parse_tensor(tf.io.read_file(path(name)), tf.as_dtype(dtype))

  with open(path("request.json"), encoding="utf-8") as file:
    request = json.load(file)
  tf.config.threading.set_intra_op_parallelism_threads(request["intra"])
  tf.config.threading.set_inter_op_parallelism_threads(request["inter"])
  loaded = tf.saved_model.load(folder)
  answer = {}
  for number, (signature, inputs) in enumerate(request["signatures"].items()):
    outputs = loaded.signatures[signature](**{name: read(*written) for name, written in inputs.items()})
    answer[signature] = {}
    for place, (name, tensor) in enumerate(outputs.items()):
      file_name = f"output-{number}-{place}"
      tf.io.write_file(path(file_name), tf.io.serialize_tensor(tensor))
      answer[signature][name] = [file_name, tensor.dtype.name]
  with open(path("answer.json"), "w", encoding="utf-8") as file:
    json.dump(answer, file)


if __name__ == "__main__":
  main(*sys.argv[1:])
