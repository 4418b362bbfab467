#!/usr/bin/env bash
# A Slurm prolog: keeps a job off a node that would break it. Slurm drains a node whose prolog fails; the reason is in the report.
# Install: Prolog=/etc/slurm/prolog.d/unhang.sh in slurm.conf. It changes nothing on the node, and ends within 20 seconds.
set -u
FOLDER="${UNHANG_CHECK_FOLDER:-/var/log/unhang}"
REPORT="$FOLDER/check-${SLURM_JOB_ID:-none}-$(hostname).xml"
mkdir -p "$FOLDER"

# Only what will break a job (severity "wrong") keeps it off the node; what is doubtful is in the report.
timeout 20 unhang check --only machine,network,devices --fail-on wrong --format junit --output "$REPORT"
code=$?
if [ "$code" -eq 1 ]; then
    echo "unhang check: this node would break the job; see $REPORT"
    exit 1
fi
# 2 wrong usage, 3 could not judge, 124 took too long: no reason to drain a node, but somebody should know.
[ "$code" -eq 0 ] || echo "unhang check: exit code $code, the node was not judged"
exit 0
