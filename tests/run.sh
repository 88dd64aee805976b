#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs test programs one after another and adds up what Check says. "make check" calls it:
#   run.sh PROGRAM... (a path that ends in .py is run with python3)
#
# A program that hangs is ended with all its processes. One that leaves behind a process, a file
# in /dev/shm (kvr*-test-*) or a file in its TMPDIR fails. STRESS=1: long, with SEED and ROUNDS.
set -u
LC_ALL=C
export LC_ALL
B=${B:-build}
SAN=${SAN:-}
shm=/dev/shm
out=$(cd "$B" && pwd)/log
mkdir -p "$out" || exit 1

limit=240
slow=1
case $SAN in
*thread*) slow=10 ;;
*address*) slow=3 ;;
esac
[ -z "$SAN" ] || limit=720
if [ -n "${STRESS:-}" ]; then
	limit=7200
	KVR_TEST_SEED=${SEED:-$(date +%s)}
	KVR_TEST_ROUNDS=${ROUNDS:-100}
	export KVR_TEST_SEED KVR_TEST_ROUNDS
	echo "rounds $KVR_TEST_ROUNDS, seed $KVR_TEST_SEED (SEED=$KVR_TEST_SEED repeats it)"
	CK_DEFAULT_TIMEOUT=${CK_DEFAULT_TIMEOUT:-$limit}
fi
limit=${KVR_TEST_LIMIT:-$limit}
CK_VERBOSITY=${CK_VERBOSITY:-normal}
CK_DEFAULT_TIMEOUT=${CK_DEFAULT_TIMEOUT:-20}
CK_TIMEOUT_MULTIPLIER=${CK_TIMEOUT_MULTIPLIER:-$slow}
export CK_VERBOSITY CK_DEFAULT_TIMEOUT CK_TIMEOUT_MULTIPLIER
# Check forks each test, and a test forks ranks that start threads: TSan stops those by default.
ASAN_OPTIONS=detect_leaks=1:${ASAN_OPTIONS:-}
UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}
TSAN_OPTIONS=die_after_fork=0:second_deadlock_stack=1:atexit_sleep_ms=50:${TSAN_OPTIONS:-}
export ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS

# gcc 12's and clang 14's TSan cannot place its shadow when the kernel randomises mappings by more
# than 28 bits ("unexpected memory mapping").
fixed=
case $SAN in
*thread*)
	bits=$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 32)
	if [ "$bits" -gt 28 ]; then
		if setarch "$(uname -m)" -R true 2>/dev/null; then
			fixed="setarch $(uname -m) -R"
		else
			echo "vm.mmap_rnd_bits is $bits, setarch -R is refused: TSan may not start"
		fi
	fi
	;;
esac

# The living processes of the program that runs now, whatever session or group they went to: they
# inherited its environment. A zombie has none.
mark=
processes() {
	[ -z "$mark" ] || grep -lszx "KVR_TEST_RUN=$mark" /proc/[0-9]*/environ | cut -d/ -f3
}

end_processes() {
	for pid in $(processes); do
		kill -KILL "$pid" 2>/dev/null
	done
}

shm_files() {
	for f in "$shm"/kvr*-test-*; do
		case $f in
		*-test-r$$-*) ;;
		*-test-r[0-9]*) continue ;; # another run's (test_name() in harness.h)
		esac
		[ ! -e "$f" ] || echo "${f##*/}"
	done | sort
}

# New files in /dev/shm that no living process has open or mapped (those belong to another run).
shm_left() {
	for f in $(shm_files | comm -13 "$1" -); do
		grep -qsF "$shm/$f" /proc/[0-9]*/maps && continue
		[ -z "$(find /proc/[0-9]*/fd -lname "$shm/$f" 2>/dev/null)" ] || continue
		[ ! -e "$shm/$f" ] || echo "$shm/$f"
	done
}

# What the program left: processes, shared memory, files. Ends are not instantaneous: retry a while.
leftovers() {
	tries=0
	while :; do
		left=$(
			for pid in $(processes); do
				echo "process $pid $(cat "/proc/$pid/comm" 2>/dev/null)"
			done
			shm_left "$1"
			find "$TMPDIR" -mindepth 1 -maxdepth 1
		)
		if [ -z "$left" ] || [ $tries -ge 20 ]; then break; fi
		tries=$((tries + 1))
		sleep 0.1
	done
}

tmp=
trap 'end_processes; [ -z "$tmp" ] || rm -rf "$tmp"; exit 130' INT TERM HUP

passed=0
failed=0
skipped=0
for prog in "$@"; do
	name=$(basename "$prog" .py)
	log=$out/$name.log
	before=$out/$name.shm
	tmp=$out/$name.tmp
	interp=
	case $prog in
	*.py)
		interp=python3
		[ ! -x /usr/bin/python3 ] || interp=/usr/bin/python3
		if [ -n "$SAN" ]; then
			echo "  skip  $name: a sanitized library cannot be loaded into python"
			skipped=$((skipped + 1))
			continue
		fi
		;;
	esac
	rm -rf "$tmp"
	mkdir -p "$tmp"
	TMPDIR=$tmp
	export TMPDIR
	shm_files >"$before"
	: >"$log"
	start=$(date +%s%N)
	mark=$$.$name
	# A session of its own: no terminal, and a signal to "my group" stays with the program.
	# shellcheck disable=SC2086
	KVR_TEST_RUN=$mark setsid timeout -k 5 "$limit" $fixed $interp "$prog" >"$log" 2>&1 &
	pid=$!
	[ "${V:-}" != 1 ] || tail -n +1 -s 0.2 --pid=$pid -f "$log" &
	wait $pid
	rc=$?
	case $rc in 124 | 137) end_processes ;; esac # out of time: what is left is no finding
	leftovers "$before"
	end_processes
	mark=
	[ "${V:-}" != 1 ] || wait
	ms=$((($(date +%s%N) - start) / 1000000))
	rm -rf "$tmp"

	read -r sums checks bad skip <<-SUMS
		$(awk '/^[0-9]+%: Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/ {
				gsub(/,/, ""); n++; c += $3; f += $5 + $7 }
			/^skipped:/ { s++ } END { print n + 0, c + 0, f + 0, s + 0 }' "$log")
	SUMS
	why=
	case $rc in
	0) ;;
	77) [ "$sums" -ne 0 ] || skip=1 ;;
	124) bad=$((bad + 1)) why="ended after $limit s" ;;
	137) bad=$((bad + 1)) why="killed" ;;
	*) [ "$bad" -ne 0 ] || bad=1 ;;
	esac
	[ "$sums" -ne 0 ] || checks=1 # a program without Check's closing line counts as one test
	[ -z "$left" ] || bad=$((bad + 1))
	ok=$((checks - bad - skip))
	[ $ok -ge 0 ] || ok=0
	passed=$((passed + ok))
	failed=$((failed + bad))
	skipped=$((skipped + skip))
	verdict=ok
	[ "$bad" -eq 0 ] || verdict=FAIL
	printf '  %-5s %-24s %3d passed, %d failed, %d skipped  %d.%03d s\n' \
		$verdict "$name" $ok "$bad" "$skip" $((ms / 1000)) $((ms % 1000))
	if [ "${V:-}" != 1 ]; then
		show='/^skipped:/!d;'
		[ "$bad" -eq 0 ] || show=
		sed "${show}s/^/    /" "$log"
	fi
	[ $rc -eq 0 ] || [ "$bad" -eq 0 ] || echo "    $name: exit status $rc${why:+, $why}"
	[ -z "$left" ] || echo "$left" | sed "s|^|    $name left behind: |"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
