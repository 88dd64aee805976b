#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shipped lib/ring.c under relacy (ring.cpp), then copies of it that are broken in one place:
# relacy must find each, or what it does not find in lib/ring.c is worth nothing. "make model" calls
# it with B and CC. RUNS=10000: random schedules for each scenario, from seed SEED=1 on.
#
# Every ordered access of ring.c is weakened in turn. One that cannot matter says so and why:
#   /* C1, pairs with P1; not needed: ... */
# It must then not be found: such a line is either needed or it is not.
set -u
LC_ALL=C
export LC_ALL
B=${B:-build}
CC=${CC:-cc}
CXX=${CXX:-g++}
RUNS=${RUNS:-10000}
src=lib/ring.c
out=$B/model
flags="-std=gnu17 -D_GNU_SOURCE -O1 -g -Iinclude -iquote lib -include tests/model/ring_atomic.h"

command -v "$CXX" >/dev/null || {
	echo "skipped: $CXX is not installed (apt-get install g++)"
	exit 0
}
echo '#include <relacy/relacy.hpp>' | "$CXX" -E -x c++ - >/dev/null 2>&1 || {
	echo "skipped: relacy-dev is not installed (apt-get install relacy-dev)"
	exit 0
}
mkdir -p "$out" || exit 1

build() { # NAME SOURCE: a model of that ring.c
	# shellcheck disable=SC2086
	$CC $flags -w -c -o "$out/$1.o" "$2" &&
		"$CXX" -o "$out/$1" "$out/$1.o" "$out/ring_err.o" "$out/ring_model.o"
}
echo "model: ring: building"
# shellcheck disable=SC2086
$CC $flags -c -o "$out/ring_err.o" lib/err.c &&
	"$CXX" -std=gnu++17 -O1 -Wall -Wextra -Iinclude -c -o "$out/ring_model.o" \
		tests/model/ring.cpp &&
	build ring $src || exit 1

echo "model: ring: $src"
{
	"$out/ring" "$RUNS" "${SEED:-1}" 2>"$out/ring.history"
	echo $? >"$out/ring.status"
} | tee "$out/ring.log"
[ "$(cat "$out/ring.status")" -eq 0 ] || {
	sed -n '/^execution history/,/^$/p' "$out/ring.history" | tail -n 40
	echo "model: ring: found in $src; the whole run is in $out/ring.history"
	exit 1
}
sum=$(tail -n 1 "$out/ring.log")

echo "model: ring: the same, the relaxed accesses to the cells as plain ones"
"$out/ring" -p -r "$RUNS" "${SEED:-1}" >"$out/ring.log" 2>"$out/ring.history" || {
	tail -n 1 "$out/ring.log"
	echo "model: ring: a relaxed access is needed; the whole run is in $out/ring.history"
	exit 1
}
echo "  no race: $(tail -n 1 "$out/ring.log")"

echo "model: ring: broken copies of $src"
controls=0
missed=0
spared=
control() { # NAME PROGRAM [1]: the sed program that breaks ring.c; 1: must not be found
	sed -E "$2" $src >"$out/ring_broken.c"
	controls=$((controls + 1))
	if cmp -s $src "$out/ring_broken.c"; then
		echo "  $1: $src has no such line any more"
		missed=$((missed + 1))
		return
	fi
	build ring_broken "$out/ring_broken.c" || exit 1
	"$out/ring_broken" -r 2000 >"$out/ring.log" 2>/dev/null
	status=$?
	said=$(tail -n 1 "$out/ring.log" |
		sed 's/DATA RACE (data race detected), in/data race in/; s/^\(.\{80\}\).*/\1.../')
	case $status,${3:-0} in
	3,0) echo "  $1: found in $said" ;;
	0,1)
		echo "  $1: not found, as its comment says"
		controls=$((controls - 1))
		spared=", some are marked as not needed"
		;;
	*)
		echo "  $1: UNEXPECTED, exit status $status: $said"
		missed=$((missed + 1))
		;;
	esac
}

# Each ordered access: its line, its letter, and 1 if it is said not to be needed. The comment is
# above, beside or behind it, as make lint wants it.
awk '
{ line[NR] = $0 }
function add(i,    s) { s = line[i]; sub(/^[ \t]*(\* )?/, " ", s); text = text s }
END {
	for (i = 1; i <= NR; i++) {
		if (line[i] !~ /kvr_(store_release|load_acquire)\(/) continue
		text = ""
		k = i
		if (line[i - 1] ~ /^[ \t]*\/?\*.*\*\/$/) do k--; while (line[k] !~ /\/\*/)
		while (k <= i || text !~ /;/ || text ~ /\/\*([^*]|\*[^\/])*$/) add(k++)
		match(text, /[A-Z][0-9]+, pairs with/)
		print i, substr(text, RSTART, RLENGTH - 12), text ~ /; not needed: /
	}
}' $src >"$out/ring.lines"
while read -r line letter marked; do
	weaken="${line}s/store_release/store_relaxed/; ${line}s/load_acquire/load_relaxed/"
	control "$letter of line $line relaxed" "$weaken" "$marked"
done <"$out/ring.lines"
control "words of a copy not looked at" \
	's/suspect_to\(w, pos \+ w->capacity \+ 1\);/(void)0;/'
control "what the caller fills in is trusted" \
	's/suspect_to\(w, w->pos \+ w->capacity\);/(void)0;/'
control "suspected up to a cell too early" 's/(suspect_to\(w, pos \+ w->capacity) \+ 1/\1/'
control "the cell behind not cleared" 's/kvr_store_relaxed\(cell_word\(w, behind\), 0\);/(void)0;/'
control "abort forgets what it wrote" 's/^\tsuspect_to\(w, w->pos\);/\t(void)0;/'
control "first header stored at once" \
	's/w->first = .*/& kvr_store_relaxed(cell, pos << 32 | low);/'
control "a cell too many" 's/(w->pos - w->reader) < w->capacity/\1 <= w->capacity/'
control "a full ring is written to" 's/return w->pos - seen \+ need > .*/return 0;/'
control "what is peeked is shown" 's/(cursor->pos, r->)released\)/\1pos)/'
control "an idle reader does not show" 's/if \(r->shown != r->released\)/if (0)/'
control "rewind keeps the number" 's/r->seq = r->released_seq;/;/'

if [ $missed -ne 0 ]; then
	echo "model: ring: $sum, $controls controls, $missed unexpected"
	exit 1
fi
echo "model: ring: $sum, $controls controls, all found$spared"
