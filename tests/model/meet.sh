#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shipped lib/channel_meet.c under relacy (meet.cpp), then copies of it that are broken in one
# place: relacy must find each. "make model" calls it with B and CC. RUNS=10000: random schedules
# for each scenario, from seed SEED=1 on.
set -u
LC_ALL=C
export LC_ALL
B=${B:-build}
CC=${CC:-cc}
CXX=${CXX:-g++}
RUNS=${RUNS:-10000}
src=lib/channel_meet.c
out=$B/model
flags="-std=gnu17 -D_GNU_SOURCE -O1 -g -Iinclude -iquote lib -include tests/model/meet_atomic.h"

command -v "$CXX" >/dev/null || {
	echo "skipped: $CXX is not installed (apt-get install g++)"
	exit 0
}
echo '#include <relacy/relacy.hpp>' | "$CXX" -E -x c++ - >/dev/null 2>&1 || {
	echo "skipped: relacy-dev is not installed (apt-get install relacy-dev)"
	exit 0
}
mkdir -p "$out" || exit 1

build() { # NAME SOURCE: a model of that channel_meet.c
	# shellcheck disable=SC2086
	$CC $flags -w -c -o "$out/$1.o" "$2" &&
		"$CXX" -o "$out/$1" "$out/$1.o" "$out/meet_world.o" "$out/meet_err.o" \
			"$out/meet_model.o"
}
echo "model: meet: building"
# shellcheck disable=SC2086
$CC $flags -c -o "$out/meet_err.o" lib/err.c &&
	$CC $flags -Wall -Wextra -c -o "$out/meet_world.o" tests/model/meet_world.c &&
	"$CXX" -std=gnu++17 -O1 -Wall -Wextra -c -o "$out/meet_model.o" tests/model/meet.cpp &&
	build meet $src || exit 1

"$out/meet" "$RUNS" "${SEED:-1}" >"$out/meet.log" 2>"$out/meet.history" || {
	sed -n '/^execution history/,/^$/p' "$out/meet.history" | tail -n 40
	tail -n 1 "$out/meet.log"
	echo "model: meet: found in $src; the whole run is in $out/meet.history"
	exit 1
}
sum=$(tail -n 1 "$out/meet.log")
echo "  $src: $sum"

controls=0
missed=0
control() { # NAME PROGRAM: the sed program that breaks channel_meet.c
	sed -E "$2" $src >"$out/meet_broken.c"
	controls=$((controls + 1))
	if cmp -s $src "$out/meet_broken.c"; then
		echo "  $1: $src has no such line any more"
		missed=$((missed + 1))
		return
	fi
	build meet_broken "$out/meet_broken.c" || exit 1
	"$out/meet_broken" 20000 >"$out/meet.log" 2>/dev/null
	status=$?
	if [ $status -eq 3 ]; then
		echo "  $1: found in $(tail -n 1 "$out/meet.log")"
	else
		echo "  $1: NOT FOUND, exit status $status: $(tail -n 1 "$out/meet.log")"
		missed=$((missed + 1))
	fi
}
control "U1 acquire and release" 's/kvr_xchg_seq_cst\(&own->round/kvr_xchg_acq_rel(\&own->round/'
control "U1 a store" 's/kvr_xchg_seq_cst\(&own->round/kvr_store_release(\&own->round/'
control "U1 relaxed" 's/kvr_xchg_seq_cst\(&own->round/kvr_store_relaxed(\&own->round/'
control "U2 acquire" 's/kvr_load_seq_cst\(&e->round/kvr_load_acquire(\&e->round/'
control "U2 relaxed" 's/kvr_load_seq_cst\(&e->round/kvr_load_relaxed(\&e->round/'
control "U3 release" 's/kvr_xchg_seq_cst\(&own->ranks/kvr_store_release(\&own->ranks/'
control "U3 relaxed" 's/kvr_xchg_seq_cst\(&own->ranks/kvr_store_relaxed(\&own->ranks/'
control "U4 acquire" 's/kvr_load_seq_cst\(&e->ranks/kvr_load_acquire(\&e->ranks/'
control "U4 relaxed" 's/kvr_load_seq_cst\(&e->ranks/kvr_load_relaxed(\&e->ranks/'
control "one slot of values" 's/value\[s->round & 1\]/value[0]/'
control "nobody rings" 's/fresh && err\)/0)/'
control "the leader is not rung" 's/if \(s->with_leader && g->rank != KVR_LEADER\)/if (0)/'
control "one member is enough" \
	's/return !s->missing && /return !(s->missing \& (s->missing - 1)) \&\& /'
control "a round ahead is refused" 's/round != s->round \+ 1\)/1)/'

if [ $missed -ne 0 ]; then
	echo "model: meet: $sum, $controls controls, $missed NOT FOUND"
	exit 1
fi
echo "model: meet: $sum, $controls controls, all found"
