#!/bin/bash
# All GPUs of one machine. Starts the run again as long as it asks for it (code 42).
#
#   MODEL_DIR=runs/digits bash docs/deploy/multi-gpu.sh
#
# CUDA_VISIBLE_DEVICES chooses among the GPUs; runtime.num_gpus makes a missing one an error.
set -u
MODEL_DIR=${MODEL_DIR:-runs/digits}
RESTARTS=${RESTARTS:-20}

stopped=""
trap 'stopped=yes; kill -TERM "$pid" 2>/dev/null' TERM INT

for ((attempt = 0; attempt <= RESTARTS; attempt++)); do
  python -m official_trainer.train \
    --experiment=digits/cnn \
    --mode=train_and_eval \
    --model_dir="$MODEL_DIR" \
    --params_override=runtime.distribution_strategy=mirrored,runtime.mixed_precision_dtype=bfloat16 &
  pid=$!
  # A signal ends the first wait; the program saves and ends after it.
  wait "$pid"; code=$?
  while kill -0 "$pid" 2>/dev/null; do wait "$pid"; code=$?; done
  if [ "$code" -ne 42 ] || [ -n "$stopped" ]; then break; fi
done
exit "$code"
