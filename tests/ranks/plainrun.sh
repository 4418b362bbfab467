#!/usr/bin/env bash
# Starts ranks as plain processes, as a shell script of a user would. Usage: plainrun.sh PYTHON PORT SCRIPT
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$2 WORLD_SIZE=4 OMP_NUM_THREADS=1
for rank in 0 1 2 3; do
  RANK=$rank LOCAL_RANK=$rank "$1" "$3" &
done
wait
