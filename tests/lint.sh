#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What two readers would otherwise argue about, checked. "make lint" calls it, with SHARED (the
# built library) and CC. Prints "file:line: reason" for each finding and fails when there is one.
# CI_TIDY=1 adds clang-tidy, which takes minutes. Needs sh, awk, grep, nm and a C compiler.
set -u
LC_ALL=C
export LC_ALL
CC=${CC:-cc}
SHARED=${SHARED:-build/libkvring.so}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM HUP

existing() {
	for f in "$@"; do
		[ ! -f "$f" ] || echo "$f"
	done
}
lib=$(existing lib/*.c lib/*.h)
public=$(existing include/kvring/*.h)
code="$lib $(existing include/*.h) $public $(existing tools/*.[ch] bench/*.[ch] bench/*.cc)"
code="$code $(existing tests/*.[ch] tests/*/*.[ch] tests/*/*.cpp)"
scripts=$(existing tests/*.sh tests/*/*.sh bench/*.sh .ci/run)
prose=$(existing ./*.md ./*/*.md)
written="$code $scripts Makefile $(existing tests/*.py bench/*.py tools/*.py man/*)"

# --- C sources: one pass over all of them -----------------------------------------------------
# The table of layers. A name in lib/ or include/kvring/ belongs to the noun it equals or begins
# with (group_scan.c belongs to group). A file includes its own noun and lower layers only; within
# L0 files may include each other. ring and storage are halves that never meet below the engine.
cat >"$tmp/layers" <<'TABLE'
0 - err atomic clock hash util io layout types version point fork axes
1 - shm node uring pread file life process
2 ring ring wait recorder peer alike
2 storage format sched fault
3 ring group
3 storage store index pool
4 ring channel inspect
4 storage tier
5 - engine
6 - connector
TABLE
cat >"$tmp/code.awk" <<'AWK'
function say(line, why) { print file ":" line ": " why }

function noun_of(name,    n) {
	sub(/.*\//, "", name); sub(/\.[ch]$/, "", name)
	for (n = name; n != ""; ) {
		if (n in layer) return n
		if (!sub(/_[^_]*$/, "", n)) break
	}
	return ""
}

function plain(i, s) { code[i] = code[i] s; bare[i] = bare[i] s }

# Splits a line into code[] and comment[]; bare[] is the code with its strings empty.
function split_line(i, s,    c, k) {
	code[i] = comment[i] = bare[i] = ""
	while (s != "") {
		if (inside) {
			k = index(s, "*/")
			if (!k) { comment[i] = comment[i] s; return }
			comment[i] = comment[i] substr(s, 1, k - 1) " "
			s = substr(s, k + 2); inside = 0
			continue
		}
		if (!match(s, /["']|\/\*|\/\//)) { plain(i, s); return }
		c = substr(s, RSTART, 1)
		plain(i, substr(s, 1, RSTART - 1))
		if (c == "/") {
			c = substr(s, RSTART, 2); s = substr(s, RSTART + 2)
			if (c == "//") { comment[i] = comment[i] s; return }
			inside = 1
			continue
		}
		s = substr(s, RSTART)
		if (c == "\"") { if (!match(s, /^"([^"\\]|\\.)*"/)) RLENGTH = length(s) }
		else if (!match(s, /^'([^'\\]|\\.)*'/)) RLENGTH = length(s)
		code[i] = code[i] substr(s, 1, RLENGTH); bare[i] = bare[i] c c
		s = substr(s, RLENGTH + 1)
	}
}

function exists(path,    x, r) { r = (getline x < path) >= 0; close(path); return r }

# The quoted or bracketed name of an include line, and how it is quoted in q.
function include_name(s) {
	if (!match(s, /^[ \t]*#[ \t]*include[ \t]*["<][^">]+[">]/)) return ""
	s = substr(s, RSTART, RLENGTH); q = s ~ /"$/ ? "\"" : "<"
	sub(/^[^"<]*["<]/, "", s); sub(/[">]$/, "", s)
	return s
}

function check_include_lib(i, inc,    own, other) {
	if (inc ~ /^(liburing|numa|numaif)(\/.*)?(\.h)?$/ && layer[noun] != 1)
		say(i, "<" inc "> belongs to layer 1 (" list[1] ") alone")
	if (inc == "kvring.h") { say(i, "the umbrella is for users of the library"); return }
	if (inc !~ /^kvring\// && q != "\"") return
	other = noun_of(inc)
	if (other == "") { say(i, inc " is not in the layer table of tests/lint.sh"); return }
	own = noun
	if (other == own) return
	if (half[own] != "-" && half[other] != "-" && half[own] != half[other])
		say(i, own " (" half[own] " half) includes " inc " (" half[other] " half)")
	else if (layer[other] > layer[own] || (layer[other] == layer[own] && layer[own] > 0))
		say(i, own " (L" layer[own] ") includes " inc " (L" layer[other] "): " \
			(layer[other] > layer[own] ? "upwards" : "sideways"))
}

function check_include_user(i, inc,    dir) {
	dir = file; sub(/[^\/]*$/, "", dir)
	if (inc ~ /^kvring(\/|\.h$)/ || (q == "<" && inc !~ /\.\./)) return
	if (inc ~ /\.\./ || !exists(dir inc))
		say(i, inc ": tools and benches see the public headers kvring/*.h only")
}

# An ordered access carries its letter: on its line, the comment line above, or up to the end of
# the statement. Remembers letters used and pairs named.
function check_order(i,    j, text, any, l) {
	text = comment[i]
	if (i > 1 && code[i - 1] ~ /^[ \t]*$/) text = comment[i - 1] " " text
	for (j = i; j < n && j < i + 6 && bare[j] !~ /[;{}]/; ) text = text " " comment[++j]
	any = 0
	gsub(/pairs with [A-Z][0-9]+((,| and| or) [A-Z][0-9]+)*/, "", text)
	while (match(text, /(^|[^A-Za-z0-9_])[A-Z][0-9]+/)) {
		l = substr(text, RSTART, RLENGTH); gsub(/[^A-Z0-9]/, "", l)
		if (!((noun, l) in used)) used[noun, l] = file ":" i
		text = substr(text, RSTART + RLENGTH); any = 1
	}
	if (!any) say(i, "an ordered access without its letter (/* P1, pairs with C1 */)")
}

function note_pairs(i,    text, x, y, rest) {
	text = comment[i]
	while (match(text, /[A-Z][0-9]+,? pairs with [A-Z][0-9]+((,| and| or) [A-Z][0-9]+)*/)) {
		rest = substr(text, RSTART + RLENGTH); text = substr(text, RSTART, RLENGTH)
		x = text; sub(/[^A-Z0-9].*/, "", x)
		sub(/^.*pairs with /, "", text)
		while (match(text, /[A-Z][0-9]+/)) {
			y = substr(text, RSTART, RLENGTH); text = substr(text, RSTART + RLENGTH)
			pair[noun, x, y] = file ":" i
			lib_pair[x, y] = paired[noun, x] = paired[x] = 1
		}
		text = rest
	}
}

function alone(where, of, x, y) {
	print where ": no line " of "says \"" x ", pairs with " y "\""
}

# A noun that has lines of both letters pairs them itself; else the partner is anywhere in lib/.
function check_pairs(    p, a) {
	for (p in pair) {
		split(p, a, SUBSEP)
		if ((a[1], a[3]) in paired) {
			if (!((a[1], a[3], a[2]) in pair))
				alone(pair[p], "of " a[1] " ", a[3], a[2])
		} else if (!((a[3], a[2]) in lib_pair)) alone(pair[p], "", a[3], a[2])
		if (!(a[2] in table))
			print pair[p] ": " a[2] " is in no header, where the order tables are"
	}
	for (p in used) {
		split(p, a, SUBSEP)
		if (!(a[2] in paired))
			print used[p] ": nothing says what " a[2] " pairs with"
	}
}

function end_file(    i, l, rest, inc, start, len, name, atomic) {
	if (file == "") return
	if (n > 800) say(n, "the file has " n " lines; 800 is the limit")
	inlib = file ~ /^lib\// || file ~ /^include\/kvring\//
	atomic = file ~ /\/atomic\.h$/
	noun = inlib ? noun_of(file) : ""
	if (inlib && noun == "") {
		say(1, "not in the layer table of tests/lint.sh"); inlib = 0
	}
	inside = start = 0
	for (i = 1; i <= n; i++) split_line(i, raw[i])
	for (i = 1; i <= n; i++) {
		if ((inc = include_name(code[i])) != "") {
			if (inlib) check_include_lib(i, inc)
			else if (file ~ /^(tools|bench)\//) check_include_user(i, inc)
		}
		if (inlib && layer[noun] != 1) {
			if (bare[i] ~ /(^|[^A-Za-z0-9_>.])(pread|pwrite)(v|v2)?(64)?[ \t]*\(/)
				say(i, "pread and pwrite belong to layer 1 (" list[1] ") alone")
			if (code[i] ~ /(^|[^A-Za-z0-9_])shm_(open|unlink)\(|"\/dev\/shm["\/]/)
				say(i, "paths in /dev/shm belong to layer 1 (" list[1] ") alone")
		}
		if (file ~ /^(lib|include|tools)\// && !atomic &&
		    bare[i] ~ /__atomic_|__ATOMIC_|__sync_|memory_order_|stdatomic\.h/)
			say(i, "only lib/atomic.h spells memory orders")
		if (inlib && !atomic && ordered != "" && match(bare[i], ordered)) check_order(i)
		if (inlib && !atomic && raw[i] !~ /^[ \t]*\*/) note_pairs(i)
		if (inlib && file ~ /\.h$/) {
			rest = comment[i]
			while (match(rest, /[A-Z][0-9]+/)) {
				l = substr(rest, RSTART, RLENGTH)
				table[l] = 1
				rest = substr(rest, RSTART + RLENGTH)
			}
		}
		if (code[i] ~ /^\{/) start = i
		else if (code[i] ~ /^[A-Za-z].*\(/) {
			name = code[i]; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name)
		}
		if (code[i] ~ /^\}/ && start) {
			len = i - start + 1
			if (len > 70) say(start, name "() has " len " lines; 70 is the limit")
			start = 0
		}
	}
}

BEGIN {
	while ((getline l < (tmp "/layers")) > 0) {
		m = split(l, f, " ")
		for (k = 3; k <= m; k++) {
			layer[f[k]] = f[1]; half[f[k]] = f[2]
			list[f[1]] = list[f[1]] (list[f[1]] == "" ? "" : " ") f[k]
		}
	}
	# The ordered helpers are those of atomic.h whose body spells an order other than relaxed.
	while ((getline l < "lib/atomic.h") > 0) {
		if (l ~ /^[a-z#].*kvr_[a-z0-9_]+\(/) {
			helper = l; sub(/.*kvr_/, "kvr_", helper); sub(/\(.*/, "", helper)
		}
		if (helper == "" || l !~ /__ATOMIC_(ACQUIRE|RELEASE|ACQ_REL|SEQ_CST)/) continue
		ordered = ordered (ordered == "" ? "" : "|") helper
		helper = ""
	}
	if (ordered != "") ordered = "(^|[^A-Za-z0-9_])(" ordered ")[ \t]*\\("
}
FNR == 1 { end_file(); file = FILENAME; n = 0 }
{ raw[n = FNR] = $0 }
END {
	end_file()
	check_pairs()
}
AWK
# shellcheck disable=SC2086
awk -v tmp="$tmp" -f "$tmp/code.awk" $code >"$tmp/found"

# --- every file that is written by hand -------------------------------------------------------
# shellcheck disable=SC2086
awk '
function ended() { if (last != "" && !spdx) print last ":1: no SPDX-License-Identifier line" }
FNR == 1 { ended(); last = FILENAME; spdx = 0 }
FNR <= 2 && /SPDX-License-Identifier: Apache-2\.0/ { spdx = 1 }
{
	s = $0; gsub(/[\200-\277]/, "", s); w = 0
	while ((k = index(s, "\t")) > 0) { w += k - 1; w += 8 - w % 8; s = substr(s, k + 1) }
	w += length(s)
	# A sentence for people is not broken to fit: a line of one string literal may be longer.
	if (w > 100 && !/^\t+"[^"]*"[,;)]*$/)
		print FILENAME ":" FNR ": " w " columns; 100 is the limit"
	if (/[ \t]$/) print FILENAME ":" FNR ": blanks at the end of the line"
}
END { ended() }' \
	$written >>"$tmp/found"
words='TO''DO|FIX''ME|XX''X|HA''CK'
# shellcheck disable=SC2086
grep -nwE "$words" $written $prose /dev/null |
	sed -E "s/^([^:]*:[0-9]+):.*/\1: says that it is unfinished ($words)/" >>"$tmp/found"

# --- exported names: public headers = map = shared library ------------------------------------
# shellcheck disable=SC2086
awk '
FNR == 1 { decl = ""; on = 0; inside = 0 }
{ while (match($0, /\/\*/) && (k = index(substr($0, RSTART + 2), "*/")))
	$0 = substr($0, 1, RSTART - 1) substr($0, RSTART + k + 3) }
inside { if (!sub(/^.*\*\//, "")) next; inside = 0 }
/\/\*/ { sub(/\/\*.*/, ""); inside = 1 }
/^[ \t]*#/ { next }
/(^|[^A-Z_])KVR_API([^A-Z_]|$)/ { on = 1; decl = ""; line = FNR }
on {
	decl = decl " " $0
	if (!/[;{]/) next
	on = 0
	if (match(decl, /kvr_[a-z0-9_]+[ \t]*\(/)) { s = substr(decl, RSTART, RLENGTH) }
	else { s = decl; sub(/[ \t]*[[;={].*/, "", s); sub(/.*[ *]/, "", s) }
	sub(/[ \t]*\(.*/, "", s); print s, FILENAME ":" line
}' $public /dev/null | sort >"$tmp/api.where"
cut -d' ' -f1 "$tmp/api.where" | sort -u >"$tmp/api"
awk '/global:/ { on = 1 } /local:/ { on = 0 } on && match($0, /kvr_[a-z0-9_]+;/) {
	print substr($0, RSTART, RLENGTH - 1) }' lib/kvring.map | sort >"$tmp/map"
uniq -d "$tmp/map" | sed 's|.*|lib/kvring.map:1: & stands there twice|' >>"$tmp/found"
sort -u -o "$tmp/map" "$tmp/map"
if [ -f "$SHARED" ]; then
	nm -D --defined-only "$SHARED" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' |
		sort -u >"$tmp/so"
else
	echo "$SHARED:1: not built, its exported names cannot be compared" >>"$tmp/found"
	cp "$tmp/map" "$tmp/so"
fi
lacks() { # names on standard input, of public headers, that $1 lacks
	while read -r s; do
		echo "$(sed -n "s/^$s //p" "$tmp/api.where" | head -n 1): $s is not in $1"
	done
}
{
	comm -23 "$tmp/api" "$tmp/map" | lacks lib/kvring.map
	comm -23 "$tmp/api" "$tmp/so" | lacks "$SHARED (no definition)"
	comm -13 "$tmp/api" "$tmp/map" | while read -r s; do
		line=$(grep -nw "$s" lib/kvring.map | head -n 1)
		echo "lib/kvring.map:${line%%:*}: $s is not declared KVR_API in a public header"
	done
	comm -13 "$tmp/map" "$tmp/so" | sed "s|.*|$SHARED:1: exports &, which lib/kvring.map lacks|"
} >>"$tmp/found"

# --- the version is written once --------------------------------------------------------------
version=$(sed -n 's/^.define KVR_VERSION_STRING "\(.*\)"/\1/p' include/kvring/version.h)
numbers=$(sed -n 's/^.define KVR_VERSION_M[A-Z]* //p; s/^.define KVR_VERSION_PATCH //p' \
	include/kvring/version.h | paste -sd. -)
[ "$version" = "$numbers" ] || echo "include/kvring/version.h:1: the string is $version, the" \
	"numbers say $numbers" >>"$tmp/found"
top=$(sed -n 's/^## \([^ ]*\).*/\1/p' CHANGELOG.md | head -n 1)
[ "$version" = "$top" ] ||
	echo "CHANGELOG.md:1: the top entry is $top, version.h says $version" >>"$tmp/found"
node=KVRING_${version%%.*}
grep -q "^$node {" lib/kvring.map || echo "lib/kvring.map:1: no version node $node" >>"$tmp/found"
if [ -f "$SHARED" ]; then
	so=$(readlink -f "$SHARED")
	[ "${so##*/}" = "libkvring.so.$version" ] ||
		echo "$SHARED:1: the file of version $version is named ${so##*/}" >>"$tmp/found"
	soname=$(readelf -d "$SHARED" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
	[ "$soname" = "libkvring.so.${version%%.*}" ] ||
		echo "$SHARED:1: the soname of version $version is $soname" >>"$tmp/found"
fi

# --- each public header alone, in C and C++; the README's program -----------------------------
cxx=
for c in "${CXX:-g++}" clang++; do
	[ -n "$cxx" ] || ! command -v "$c" >/dev/null || cxx=$c
done
[ -n "$cxx" ] || echo "lint: no C++ compiler, the headers were not compiled as C++"
alone() {
	printf '#include "%s"\n#include "%s"\n' "$h" "$h" |
		"$@" -Wall -Wextra -Wundef -Werror -Iinclude -fsyntax-only - >"$tmp/out" 2>&1 &&
		return
	grep -m 3 -E '(error|warning):' "$tmp/out" || sed -n 1p "$tmp/out"
	echo "include/$h:1: does not compile alone with: $*"
}
# shellcheck disable=SC2086
for h in kvring.h $(cd include && existing kvring/*.h); do
	[ -f "include/$h" ] || continue
	alone $CC -x c -std=gnu17 -D_GNU_SOURCE
	alone $CC -x c -std=c11 -Wstrict-prototypes
	[ -z "$cxx" ] || alone "$cxx" -x c++ -std=c++17
done >>"$tmp/found"
if [ -f README.md ]; then
	awk '/^```c$/ { on = 1; print "#line " NR + 1 " \"README.md\""; next }
		/^```/ && on { exit } on' README.md >"$tmp/readme.c"
	# shellcheck disable=SC2086
	$CC -std=gnu17 -Wall -Wextra -Werror -Iinclude -fsyntax-only "$tmp/readme.c" 2>&1 |
		grep -E '^README.md:[0-9]+:.*(error|warning):' >>"$tmp/found"
fi

# --- formatters and checkers of others, where they are installed ------------------------------
# Versions of clang-format differ in details, so one of them is the reference.
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
	# shellcheck disable=SC2086
	clang-format --dry-run $code 2>&1 |
		sed -n 's/^\([^:]*:[0-9]*\):[0-9]*: warning: .*/\1: make format changes this/p' |
		sort -u >>"$tmp/found"
else
	echo "lint: no clang-format 14, formatting was not checked"
fi
if command -v shellcheck >/dev/null; then
	# shellcheck disable=SC2086
	shellcheck -f gcc $scripts | sed 's/: \(note\|warning\|error\): /: /' >>"$tmp/found"
else
	echo "lint: no shellcheck, scripts were not checked"
fi
if [ "${CI_TIDY:-}" = 1 ]; then
	if command -v clang-tidy >/dev/null; then
		existing lib/*.c tools/*.c | xargs -P "$(nproc)" -I {} clang-tidy --quiet {} \
			-- -std=gnu17 -D_GNU_SOURCE -Iinclude -iquote lib 2>/dev/null |
			sed -n "s|^$PWD/||; s/^\([^ :]*:[0-9]*\):[0-9]*: [a-z]*: /\1: /p" |
			grep '\[[a-z].*\]$' | sort -u >>"$tmp/found"
	else
		echo "clang-tidy:1: asked for by CI_TIDY=1 and not installed" >>"$tmp/found"
	fi
fi

sort -t: -k1,1 -k2,2n "$tmp/found" | uniq
count=$(sort -u "$tmp/found" | grep -c .)
[ "$count" -eq 0 ] || { echo "lint: $count findings"; exit 1; }
echo "lint: nothing found"
