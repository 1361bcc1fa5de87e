#!/bin/bash
# On a TPU VM. No TPU was available to the tests of this project: see the README beside this file.
#
#   gcloud compute tpus tpu-vm ssh my-tpu --zone=... --command="MODEL_DIR=gs://bucket/runs/digits bash tpu-vm.sh"
#
# For a slice of several hosts run it on one of them, with TPU set to the name of the slice.
set -u
MODEL_DIR=${MODEL_DIR:?a folder that outlives the machine, e.g. gs://bucket/runs/digits}
TPU=${TPU:-local}
RESTARTS=${RESTARTS:-20}

for ((attempt = 0; attempt <= RESTARTS; attempt++)); do
  # The metadata server of the machine tells half a minute ahead that it will be taken away.
  python -m official_trainer.train \
    --experiment=digits/cnn \
    --mode=train_and_eval \
    --model_dir="$MODEL_DIR" \
    --tpu="$TPU" \
    --params_override=runtime.distribution_strategy=tpu,runtime.mixed_precision_dtype=bfloat16 \
    --params_override=runtime.preemption_notice=gce
  code=$?
  if [ "$code" -ne 42 ]; then break; fi
done
exit "$code"
