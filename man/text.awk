# SPDX-License-Identifier: Apache-2.0
# Text, and what it is to roff. For header.awk and page.awk; POSIX awk, and mawk has no {n,m}.
function blanks(n) { return n > 0 ? sprintf("%" n "s", "") : "" }
function trim_end(s) { sub(/[ \t]+$/, "", s); return s }
function trim(s) { sub(/^[ \t]+/, "", s); return trim_end(s) }
function indent_of(s) { match(s, /^ */); return RLENGTH }

function expand(s,    k) { # tabs, as an editor shows them
	while ((k = index(s, "\t")) > 0)
		s = substr(s, 1, k - 1) blanks(8 - (k - 1) % 8) substr(s, k + 1)
	return s
}

# A character that roff would take for another. In code also those that would become typographic.
function escape(c, code) {
	if (c == "\\") return "\\e"
	if (c == "~") return "\\(ti"
	if (c == "^") return "\\(ha"
	if (!code) return c
	if (c == "-") return "\\-"
	if (c == "'") return "\\(aq"
	if (c == "`") return "\\(ga"
	return c
}

function escaped(s, code,    i, out) {
	for (i = 1; i <= length(s); i++) out = out escape(substr(s, i, 1), code)
	return out
}

function line_of(s) { return (s ~ /^[.']/ ? "\\&" : "") s } # a line that is no request
