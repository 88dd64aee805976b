#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fuzzes the library: targets tests/fuzz/fuzz_NAME.c, with libFuzzer, address and undefined
# sanitizers. "make fuzz" calls it:
#   run.sh can          fails, and says why, when $CC has no libFuzzer
#   run.sh PROGRAM...   each for FUZZ_SECONDS; FUZZ_ARGS are for libFuzzer, such as -seed=1
#
# Inputs that reached something new stay in $B/corpus/NAME for the next run. An input that fails is
# named with the command that repeats it.
set -u
LC_ALL=C
export LC_ALL
B=${B:-build/fuzz}
CC=${CC:-clang}

if [ "${1:-}" = can ]; then
	if ! command -v "$CC" >/dev/null; then
		echo "skipped: no $CC here, nothing was fuzzed"
		exit 1
	fi
	tmp=$(mktemp -d) || exit 1
	trap 'rm -rf "$tmp"' EXIT
	echo 'int LLVMFuzzerTestOneInput(const char *p, long n) { return p && n > 9; }' |
		"$CC" -fsanitize=fuzzer,address,undefined -x c -o "$tmp/probe" - 2>/dev/null &&
		exit 0
	echo "skipped: $CC has no libFuzzer (on Debian: libclang-rt-dev), nothing was fuzzed"
	exit 1
fi

seconds=${FUZZ_SECONDS:-60}
# Freed memory is kept back to find late uses of it. Little is enough here, and faster.
ASAN_OPTIONS=quarantine_size_mb=8:${ASAN_OPTIONS:-}
UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}
export ASAN_OPTIONS UBSAN_OPTIONS
failed=0
for prog in "$@"; do
	name=$(basename "$prog")
	name=${name#fuzz_}
	corpus=$B/corpus/$name
	log=$B/$name.log
	mkdir -p "$corpus" || exit 1
	# shellcheck disable=SC2086
	timeout -k 5 $((seconds + 120)) "$prog" -max_total_time="$seconds" -timeout=10 \
		-max_len=4096 -len_control=0 -print_funcs=0 -print_final_stats=1 \
		-artifact_prefix="$B/$name-" ${FUZZ_ARGS:-} "$corpus" >"$log" 2>&1
	rc=$?
	runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
	covered=$(sed -n 's/^#[0-9]*\t.*\(cov: [0-9]* ft: [0-9]*\) .*/\1/p' "$log" | tail -n 1)
	files=$(find "$corpus" -type f | wc -l)
	verdict=ok
	[ $rc -eq 0 ] || verdict=FAIL
	printf '  %-5s %-12s %s executions in %s s, %s, corpus of %s\n' $verdict "$name" \
		"${runs:-no}" "$seconds" "${covered:-no coverage}" "$files"
	[ $rc -ne 0 ] || continue
	failed=1
	grep -vE '^#[0-9]+[[:space:]]|^INFO:| in (fuzzer::|main |_start|__libc_start)' "$log" |
		head -n 40 | sed 's/^/    /'
	input=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
	if [ -n "$input" ]; then
		echo "    the input is $input; again: $prog $input"
	else
		echo "    exit status $rc; the whole log is $log"
	fi
done
exit $failed
