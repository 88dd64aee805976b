#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs benchmarks one after another and says first on what. "make bench" calls it:
#   run.sh PROGRAM...
set -u
if [ $# -eq 0 ]; then
	echo "bench: there is no bench/bench_NAME.c for this"
	exit 0
fi

read_or() { cat "$1" 2>/dev/null || echo "$2"; }
cpu=/sys/devices/system/cpu

model=$(sed -n 's/^model name[[:space:]]*: //p' /proc/cpuinfo | sed -n 1p)
memory=$(awk '/^MemTotal/ { printf "%.1f GiB", $2 / 1048576 }' /proc/meminfo)
siblings=$(cat $cpu/cpu*/topology/thread_siblings_list 2>/dev/null | sort -un | paste -sd' ' -)
echo "machine:  ${model:-$(uname -m)}, $(nproc) cores usable, $memory"
echo "siblings: $siblings"
echo "nodes:    $(read_or /sys/devices/system/node/online '?')"
echo "kernel:   $(uname -srm)"
echo "governor: $(read_or $cpu/cpu0/cpufreq/scaling_governor 'not told')"
echo "load:     $(cut -d' ' -f1-3 /proc/loadavg)"
echo "date:     $(date -u +%Y-%m-%dT%H:%M:%SZ)"
failed=0
for prog in "$@"; do
	printf '\n== %s\n' "${prog##*/}"
	"$prog" || { echo "${prog##*/}: exit status $?"; failed=$((failed + 1)); }
done
exit $((failed > 0))
