#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Explores wait.pml, the model of how waiters sleep and are woken, with spin: shapes and machines in
# which it must hold, then the same with one thing wrong, each of which must be found. A counter-
# example is printed. FULL=1: larger shapes too, which take minutes and 2 GiB.
# Needs spin and a C compiler.
set -u
LC_ALL=C
export LC_ALL
CC=${CC:-cc}
cd "$(dirname "$0")/../.." || exit 1
if ! command -v spin >/dev/null; then
	echo "skipped: spin is not installed (apt-get install spin)"
	exit 0
fi
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM HUP
cp tests/model/wait.pml "$tmp/" || exit 1

shapes=0
total=0
controls=0
failed=0

failure() {
	echo "model: wait: FAILED: $*"
	failed=$((failed + 1))
}

# --- is it a model of what the sources say? ----------------------------------------------------
# Lines in order, letters on their line or the comment before it, and no letter but these.
awk '
function say(why) { print file ": " why " (see tests/model/wait.pml)"; bad = 1 }

function compare(    line, code, comment, before, at, s, l) {
	at = 1
	while ((getline line < file) > 0) {
		if (line ~ /^[ \t]*\*([ \/]|$)/) { before = before line; continue }
		code = line; sub(/[ \t]*\/\*.*/, "", code); sub(/^[ \t]+/, "", code)
		comment = match(line, /\/\*.*/) ? substr(line, RSTART) : ""
		if (code == "") { before = before comment; continue }
		s = before comment; before = ""
		if (at <= n && code == want[at]) {
			l = letter[at++]
			if (l != "--" && !sub(l ", pairs with", "", s)) say("no " l " at: " code)
		}
		while (match(s, /[A-Z][0-9]+, pairs with/)) {
			l = substr(s, RSTART, RLENGTH); sub(/,.*/, "", l)
			say(l " at a line that the model does not have: " code)
			s = substr(s, RSTART + RLENGTH)
		}
	}
	close(file)
	if (at <= n) say("the model has this line, at this place: " want[at])
}

/^ \* lib\/[a-z_]*\.c$/ { if (file != "") compare(); file = $2; n = 0; files++; next }
/^ \*   ([A-Z][0-9]+|--)  / && file != "" {
	letter[++n] = $2; want[n] = substr($0, index($0, $2) + 4); next
}
/^ \*$/ && n { exit }
END {
	if (file != "") compare()
	if (files != 2) { print "wait.pml: its list of lines is not readable"; bad = 1 }
	exit bad
}' tests/model/wait.pml >"$tmp/lines" || {
	cat "$tmp/lines"
	failure "the model is not of these sources"
}

# What the watcher compares its first look with: the model has both.
case $(sed -n 's/^\tw->seq = \(kvr_load.*\);.*/\1/p' lib/group_watcher.c) in
'kvr_load_relaxed32(&bell->seq)') first=0 ;;
'kvr_load_relaxed32(&bell->seq) - 1') first=1 ;;
*)
	first=1
	failure "lib/group_watcher.c: the model does not know how w->seq starts (FIRST)"
	;;
esac

# --- one run -----------------------------------------------------------------------------------
# Definitions as arguments. Leaves verdict (holds, asleep, assertion, loops, or broken: the run
# itself), states and transitions. With loops=1 it searches for endless loops instead.
loops=
explore() {
	rm -f "$tmp"/pan* "$tmp"/*.trail
	verdict=broken
	states=0
	transitions=0
	mode='-DSAFETY -DMEMLIM=2000'
	args=
	if [ -n "$loops" ]; then
		mode='-DNP -DMEMLIM=2000'
		args=-l
	fi
	(
		cd "$tmp" || exit 1
		# shellcheck disable=SC2086
		spin -a "$@" wait.pml && $CC -w "$opt" $mode -o pan pan.c &&
			./pan -m10000 -w22 $args
	) >"$tmp/out" 2>&1
	states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' "$tmp/out")
	transitions=$(sed -n 's/^ *\([0-9]*\) transitions.*/\1/p' "$tmp/out")
	states=${states:-0}
	transitions=${transitions:-0}
	if grep -q '^pan:1: invalid end state' "$tmp/out"; then # somebody sleeps for ever
		verdict=asleep
	elif grep -q '^pan:1: assertion violated' "$tmp/out"; then
		verdict=assertion
	elif grep -q '^pan:1: non-progress cycle' "$tmp/out"; then
		verdict=loops
	elif grep -q 'errors: 0$' "$tmp/out" && [ "$states" -gt 0 ] &&
		! grep -qE 'not completed|too small|memory bound|MEMLIM' "$tmp/out"; then
		verdict=holds
	fi
}

# The counter-example: what reached memory or was read from it, and the kernel's part.
show_trail() {
	grep -E '^pan:1:|[Ee]rror:' "$tmp/out"
	[ -f "$tmp/wait.pml.trail" ] || return 0
	echo "the order of words in mem: data of each publisher, parked, seq"
	(cd "$tmp" && spin -t -p "$@" wait.pml) |
		sed -n 's/^.*(\([a-z]*\):.*wait\.pml:\([0-9]*\) .*[ \t]\[\(.*\)\]$/  \2 \1: \3/p' |
		grep -E ': [^(]*(mem|queued|readable|known)'
}

holds() { # what, definitions
	what=$1
	shift
	opt=-O1
	explore "$@"
	shapes=$((shapes + 1))
	total=$((total + states))
	if [ $verdict = holds ]; then
		printf 'holds    %-58s %8d states %8d transitions\n' \
			"$what" "$states" "$transitions"
		return
	fi
	failure "$what: $verdict ($*)"
	show_trail "$@"
}

breaks() { # verdict, what, definitions
	want=$1
	what=$2
	shift 2
	opt=-O0
	explore "$@"
	controls=$((controls + 1))
	if [ "$verdict" = "$want" ]; then
		printf 'control  %-58s found: %s, %d states\n' "$what" "$verdict" "$states"
		return
	fi
	failure "$what: NOT FOUND: $verdict instead of $want ($*)"
}

# --- what must hold ----------------------------------------------------------------------------
# What is possible on x86 is possible on the weak machine, so that most run there only.
holds "x86: 2 publishers of 2, 1 sleeper" -DPUBS=2
holds "1 publisher of 3, 1 sleeper" -DWEAK=1 -DMSGS=3
holds "1 publisher of 2, 2 sleepers" -DWEAK=1 -DSLEEPERS=2
loops=1
holds "1 publisher of 2, 2 sleepers: no endless loop" -DWEAK=1 -DSLEEPERS=2
loops=
holds "2 publishers of 2, 1 sleeper" -DWEAK=1 -DPUBS=2
holds "2 publishers of 1, 2 sleepers" -DWEAK=1 -DPUBS=2 -DMSGS=1 -DSLEEPERS=2
holds "2 publishers of 2, 2 sleepers with one each" -DWEAK=1 -DPUBS=2 -DSLEEPERS=2 -DOWN=1
holds "watcher, 1 publisher of 3: no event too many" -DWEAK=1 -DMSGS=3 -DSLEEPERS=0 \
	-DWATCHER=1 -DSILENT=1
holds "watcher, 2 publishers of 2" -DWEAK=1 -DPUBS=2 -DSLEEPERS=0 -DWATCHER=1
holds "watcher and 1 sleeper, 1 publisher of 2" -DWEAK=1 -DWATCHER=1 -DFIRST=$first
holds "back-stop, 1 publisher of 2, 2 sleepers: none counted" -DWEAK=1 -DSLEEPERS=2 -DBACKSTOP=1 \
	-DGRACE=1
holds "back-stop, 2 publishers of 2, 1 sleeper: none counted" -DWEAK=1 -DPUBS=2 -DBACKSTOP=1
# More order than is needed: B4 comes before B2 by the one's acquire or the other's release, and B3
# after B1 by the latter's acquire.
holds "B3 and B4 relaxed, 1 publisher of 2, 2 sleepers" -DWEAK=1 -DSLEEPERS=2 -DB3_REL=0 -DB4_ACQ=0
holds "B3 and B4 relaxed, 2 publishers of 2, 1 sleeper" -DWEAK=1 -DPUBS=2 -DB3_REL=0 -DB4_ACQ=0
holds "B2 without release, 1 publisher of 2, 2 sleepers" -DWEAK=1 -DSLEEPERS=2 -DB2_REL=0
# Another protocol, which would spare the ringer its exchange.
holds "membarrier, 2 publishers of 1, 2 sleepers" -DWEAK=1 -DPUBS=2 -DMSGS=1 -DSLEEPERS=2 \
	-DMEMBARRIER=1
holds "membarrier, one publisher exchanges instead" -DWEAK=1 -DPUBS=2 -DMSGS=1 -DSLEEPERS=2 \
	-DMEMBARRIER=1 -DFOREIGN=1
if [ -n "${FULL:-}" ]; then
	holds "2 publishers of 2, 2 sleepers" -DWEAK=1 -DPUBS=2 -DSLEEPERS=2
	holds "B3 and B4 relaxed, 2 publishers of 1, 2 sleepers" -DWEAK=1 -DPUBS=2 -DMSGS=1 \
		-DSLEEPERS=2 -DB3_REL=0 -DB4_ACQ=0
	holds "watcher and 1 sleeper, 2 publishers of 1" -DWEAK=1 -DPUBS=2 -DMSGS=1 -DWATCHER=1 \
		-DFIRST=$first
	holds "back-stop, 2 publishers of 2, 2 sleepers with one each" -DWEAK=1 -DPUBS=2 \
		-DSLEEPERS=2 -DOWN=1 -DBACKSTOP=1
	holds "membarrier, 2 publishers of 2, 1 sleeper" -DWEAK=1 -DPUBS=2 -DMEMBARRIER=1
fi

# --- what must be found ------------------------------------------------------------------------
broken() { # name in wait.pml, what, definitions
	name=$1
	what=$2
	shift 2
	breaks asleep "$what" -DBROKEN="$name" "$@"
}

broken B1_PLAIN "x86: B1 a load and a store"
broken B2_PLAIN "x86: B2 a store"
broken B3_MISSING "x86: no B3"
broken B3_AFTER_WAKE "x86: B3 after futex_wake"
broken B4_AFTER_B2 "x86: B4 between B2 and the second look"
broken B4_AFTER_LOOK "x86: B4 after the second look"
broken NO_SECOND_LOOK "x86: no second look"
broken WAKE_ONE "x86: one sleeper of two is woken" -DSLEEPERS=2
# No fault of the code: one of the things that the back-stop is for.
broken DIES "x86: a ringer is killed between B1 and B3" -DPUBS=2
broken E1_AFTER_WRITE "x86: the eventfd is written before E1" -DSLEEPERS=0 -DWATCHER=1
broken E1_ALONE "x86: the watcher does not compare seq" -DSLEEPERS=0 -DWATCHER=1
broken SEQ_AFTER_E1 "x86: the watcher reads seq after E1" -DSLEEPERS=0 -DWATCHER=1
breaks asleep "x86: a sleeper parks before the watcher's first look" -DWATCHER=1 -DFIRST=0
breaks assertion "x86: back-stop, no grace time" -DBACKSTOP=1 -DGRACE=0
breaks assertion "x86: back-stop, 2 publishers, time for one ring only" -DPUBS=2 -DBACKSTOP=1 \
	-DGRACE=1
breaks asleep "B1 without release" -DWEAK=1 -DB1_REL=0
breaks asleep "B2 without acquire" -DWEAK=1 -DB2_ACQ=0
breaks asleep "B2 without release, B4 relaxed" -DWEAK=1 -DB2_REL=0 -DB4_ACQ=0
breaks asleep "E1 without release" -DWEAK=1 -DE1_REL=0 -DSLEEPERS=0 -DWATCHER=1
broken NO_BARRIER "x86: membarrier protocol without the membarrier" -DMEMBARRIER=1
broken UNREGISTERED "x86: membarrier, one publisher not registered" -DPUBS=2 -DMEMBARRIER=1

sum="model: wait: $shapes configurations, $total states, $controls controls"
if [ $failed -gt 0 ]; then
	echo "$sum, $failed FAILED"
	exit 1
fi
echo "$sum, all found"
