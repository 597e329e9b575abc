#!/bin/bash
# 4 ranks in 2 hosts of 2, by LSF. Written by `hvdrun job write`.
#   bsub < FILE
# note: train.parameters is ignored: only one experiment can be meant
# note: the image registry.example/train:1 is left out: ranks run in the environment of the cluster
#BSUB -J digits
#BSUB -cwd /work
#BSUB -n 4
#BSUB -R "span[ptile=2]"
#BSUB -R "affinity[core(2)]"
#BSUB -R "rusage[mem=4096MB/host]"
#BSUB -hl -M 4096MB
#BSUB -gpu "num=2/host"
set -e
export NCCL_DEBUG=INFO
export TRAPS='y $HOME $(A) $$ {{x}} '"'"'"'
hvdrun python prepare.py
exec hvdrun sh -c "python train.py --name 'a b' | tee log"
