#!/bin/bash
# 4 ranks in 2 nodes of 2, by Slurm. Written by `hvdrun job write`.
#   sbatch FILE
# note: train.parameters is ignored: only one experiment can be meant
# note: the image registry.example/train:1 is left out: ranks run in the environment of the cluster
#SBATCH --job-name=digits
#SBATCH --chdir=/work
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --mem=4096M
#SBATCH --gpus-per-node=2
set -e
# Ranks of several nodes authenticate each other with it.
HVD_SECRET_KEY=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export HVD_SECRET_KEY
export NCCL_DEBUG=INFO
export TRAPS='y $HOME $(A) $$ {{x}} '"'"'"'
srun --cpus-per-task=2 python prepare.py
srun --cpus-per-task=2 sh -c "python train.py --name 'a b' | tee log"
