#!/bin/bash
# Several machines without a scheduler: the same command on each of them, with its own index.
#
#   on host-a:  INDEX=0 bash docs/deploy/hosts.sh      (the chief: it writes the folder of the run)
#   on host-b:  INDEX=1 bash docs/deploy/hosts.sh
#
# MODEL_DIR is a folder that all of them see. Start all again when they end with code 42.
set -u
HOSTS=${HOSTS:-host-a:2222,host-b:2222}
MODEL_DIR=${MODEL_DIR:-/shared/runs/digits}
export GCE_METADATA_IP=${GCE_METADATA_IP:-127.0.0.1:9}  # Not on Google's machines: ask no metadata server.

exec python -m official_trainer.train \
  --experiment=digits/cnn \
  --mode=train_and_eval \
  --model_dir="$MODEL_DIR" \
  --params_override=runtime.distribution_strategy=multi_worker_mirrored \
  --params_override="runtime.worker_hosts='$HOSTS',runtime.task_index=${INDEX:?the index of this machine, from 0}"
