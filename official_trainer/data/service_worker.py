"""A program: one worker of a tf.data service, which ends when the process that started it does.

    python -m official_trainer.data.service_worker DISPATCHER PORT

It writes one line when it is ready. Its standard input is a pipe from its starter, which ends with the starter, however
that ends.
"""

import os
import signal
import sys


def main(dispatcher: str, port: int) -> None:
  """Serves until standard input ends.

  Args:
    dispatcher: host:port.
    port: on which the worker listens.
  """
  # A Ctrl-C of the terminal reaches every process of the run; the run decides when this one is not needed any more.
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  import tensorflow as tf

  service = tf.data.experimental.service
  worker = service.WorkerServer(
    service.WorkerConfig(dispatcher_address=dispatcher, worker_address=f"localhost:{port}", port=port)
  )
  print("ready", flush=True)
  sys.stdin.read()
  # Ends at once: closing in good order would wait for requests of a starter that is gone.
  del worker
  os._exit(0)


if __name__ == "__main__":
  main(sys.argv[1], int(sys.argv[2]))
