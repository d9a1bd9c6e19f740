#!/usr/bin/env bash
#SBATCH --job-name=dsv4-conformance
#SBATCH --array=1-4
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --time=04:00:00
#SBATCH --output=slurm-%A_%a.log
#
# Slurm with pyxis and enroot, in the checkout: `sbatch ci/slurm.sh`. One task of the array for each shard; two GPUs
# for the modules about parallel serving. TIMES names a results.json of an earlier run, by whose minutes shards are
# balanced. When all have ended: `python -m ci report evidence/*/results.json --out evidence`.
set -euo pipefail

image=${VLLM_IMAGE:-vllm/vllm-openai:v0.33.0}
shard=$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT

# A clone on the node for each task: in one folder, tasks would install into each other's environment.
suite=$(mktemp -d)
trap 'rm -rf "$suite"' EXIT
git clone -q "$SLURM_SUBMIT_DIR" "$suite"
mkdir -p "$SLURM_SUBMIT_DIR/evidence"
if [ -n "${TIMES:-}" ]; then cp "$TIMES" "$suite/before.json"; fi

# The image would start a server by itself, so its entry point is left out. The engine is the one of the image's
# Python; the suite gets an environment of its own beside it. Without -n: two engines would share a GPU.
srun --container-image="$image" --no-container-entrypoint \
  --container-mounts="$suite:/suite,$SLURM_SUBMIT_DIR/evidence:/evidence" --container-workdir=/suite \
  bash -c "python3 -m venv .venv && .venv/bin/pip install -q -e . && .venv/bin/pytest -m vllm \
    --vllm process:/usr/bin/python3 --shard $shard ${TIMES:+--shard-times=before.json} --evidence=/evidence"
