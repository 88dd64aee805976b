#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The manual pages in $B/man, checked: every exported call has one, each says all that its header
# says, references lead somewhere, the example compiles, and the formatters that are installed have
# no complaint. "make lint" calls it. Prints "file:line: reason" for each finding and fails then.
set -u
LC_ALL=C
export LC_ALL
CC=${CC:-cc}
man=${B:-build}/man
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM HUP
say() { echo "$*" >>"$tmp/found"; }
: >"$tmp/found"

# Pages: what is not a mere name of another one.
# shellcheck disable=SC2046
pages=$(grep -L '^\.so ' $(find "$man" -name '*.[1-9]' | sort) /dev/null | grep -v '^/dev/null$')
[ -n "$pages" ] || { echo "$man:1: no pages; make man"; exit 1; }

# --- a call: man NAME finds a page with its name, its prototype and its description -------------
section() { # of page $2 the section $1, as text
	awk -v want="$1" '/^\.SH / { on = $0 == ".SH " want; next } on' "$2" | plain
}
plain() { # the text of roff
	sed -e '/^\.\\"/d' -e 's/^\.S[HS] //' -e '/^\.[a-zA-Z]*$/d' \
		-e '/^\.\(RS\|TP\|sp\|TH\|ad\)/d' -e 's/^\.[BIR][BIR]* //' -e 's/\\f[BIRP]//g' \
		-e 's/\\&//g' -e 's/\\-/-/g' -e "s/\\\\(aq/'/g" -e 's/\\(ga/`/g' \
		-e 's/\\(ha/^/g' -e 's/\\(ti/~/g' -e 's/\\e/\\/g'
}
awk '/global:/ { on = 1 } /local:/ { on = 0 } on && match($0, /kvr_[a-z0-9_]+;/) {
	print substr($0, RSTART, RLENGTH - 1), NR }' lib/kvring.map >"$tmp/calls"
while read -r call line; do
	page=$man/man3/$call.3
	to=$(sed -n 's/^\.so //p' "$page" 2>/dev/null)
	[ -z "$to" ] || page=$man/$to
	if ! [ -f "$page" ]; then
		say "lib/kvring.map:$line: $call has no page"
		continue
	fi
	section NAME "$page" | grep -qw "$call" || say "$page:1: NAME lacks $call"
	section SYNOPSIS "$page" | grep -qw "$call" || say "$page:1: SYNOPSIS lacks $call"
	grep '^\.SS ' "$page" | grep -qw "$call" || say "$page:1: nothing describes $call"
done <"$tmp/calls"

# --- a header: all its words, in order, are on its page: of the comments, and of the code -------
cat >"$tmp/words.awk" <<'AWK'
# Words of the header, of its code or (code=0) of its comments, that do not follow each other.
function words(s,    w) {
	while (match(s, /[A-Za-z0-9_]+/)) {
		w = substr(s, RSTART, RLENGTH); s = substr(s, RSTART + RLENGTH)
		if (NR == FNR) { have[++n] = w; continue }
		for (from = at + 1; from <= n && have[from] != w; from++) ;
		if (from > n) { print FILENAME ":" FNR ": " page " lacks " w; exit }
		at = from
	}
}
NR == FNR { words($0); next }
/SPDX-License-Identifier/ || /^#[ \t]*(if|end|include|define KVRING_[A-Z]*_H$)/ { next }
/^extern "C"/ || /^}$/ || /^struct [a-z_]*;$/ { next }
{
	text = $0; gsub(/KVR_API/, "", text); comments = ""; rest = ""
	while (text != "") {
		k = index(text, inside ? "*/" : "/*")
		part = k ? substr(text, 1, k - 1) : text
		if (inside) comments = comments " " part
		else rest = rest " " part
		if (!k) break
		text = substr(text, k + 2); inside = !inside
	}
	words(code ? rest : comments)
}
AWK
for h in include/kvring/*.h; do
	page=$man/man3/kvr_$(basename "$h" .h).3
	if ! grep -q '^KVR_API ' "$h"; then continue; fi
	if ! [ -f "$page" ]; then
		say "$h:1: no page $page"
		continue
	fi
	grep -q "kvr_$(basename "$h" .h) (3)" "$man/man7/kvring.7" ||
		say "$man/man7/kvring.7:1: nothing leads to kvr_$(basename "$h" .h)(3)"
	awk '/^\.SH DESCRIPTION/ { on = 1 } /^\.SH RETURN VALUE/ { on = 0 } on' "$page" | plain \
		>"$tmp/text"
	for code in 0 1; do
		awk -v code=$code -v page="$page" -f "$tmp/words.awk" "$tmp/text" "$h"
	done >>"$tmp/found"
done

# --- references to pages of ours ----------------------------------------------------------------
# shellcheck disable=SC2086
awk '/^\.BR (kvr_|kvring)[a-z0-9_]* \([0-9]\)/ {
	s = substr($3, 2, 1); print FILENAME ":" FNR " man" s "/" $2 "." s }' $pages /dev/null |
	while read -r where to; do
		[ -f "$man/$to" ] || say "$where: there is no $to"
	done

# --- the example --------------------------------------------------------------------------------
if [ -f "$man/man7/kvring.7" ]; then
	awk '/^\.SH EXAMPLE/ { on = 1 } on && /^\.nf/ { code = 1; next } /^\.fi/ { code = 0 }
		on && code' "$man/man7/kvring.7" | plain >"$tmp/example.c"
	# shellcheck disable=SC2086
	$CC -std=gnu17 -Wall -Wextra -Werror -Iinclude -fsyntax-only "$tmp/example.c" \
		2>"$tmp/out" || say "$man/man7/kvring.7:1: the example:" \
		"$(grep -m 1 -E 'error:|warning:' "$tmp/out")"
	[ -s "$tmp/example.c" ] || say "$man/man7/kvring.7:1: no example"
fi

# --- formatters, where they are installed -------------------------------------------------------
if command -v groff >/dev/null; then
	for page in $pages; do
		groff -ww -mandoc -Tascii -P-c -P-b -P-u "$page" 2>"$tmp/out" |
			awk -v p="$page" 'length > 80 { print p ":1: " length " columns: " $0 }' \
				>>"$tmp/found"
		sed 's/^[^:]*troff[^:]*: *//; s/^<[^>]*>://; s/^troff: //' "$tmp/out" >>"$tmp/found"
	done
else
	echo "skipped: man pages without groff"
fi
if command -v mandoc >/dev/null; then
	# No date: a version says more, and the same sources give the same pages.
	# shellcheck disable=SC2086
	mandoc -T lint -W warning $pages 2>&1 |
		sed -n 's/^mandoc: //; /missing date, using ""/d; /^[^ ]*:[0-9]/p' >>"$tmp/found"
else
	echo "skipped: man pages without mandoc"
fi

sort -t: -k1,1 -k2,2n "$tmp/found" | uniq
count=$(sort -u "$tmp/found" | grep -c .)
[ "$count" -eq 0 ] || { echo "man: $count findings"; exit 1; }
echo "man: nothing found"
