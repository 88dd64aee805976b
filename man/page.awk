# SPDX-License-Identifier: Apache-2.0
# Fills in what a page that is written by hand takes from elsewhere: @VERSION@, and for a line
# @EXAMPLE@ the README's first program, which lint compiles and check-install runs.
#
#   awk -v version=V -v readme=README.md -f man/text.awk -f man/page.awk man/NAME.7
#
# The program's lines are broken at blanks to fit a page, tabs are four columns. POSIX awk.
function put(s) { print line_of(escaped(s, 1)) }
function outside(s) { return gsub(/"/, "\"", s) % 2 == 0 } # of a string

# Where to break `s`, so that at most `room` characters come before: a blank outside of a string.
function break_at(s, room,    k) {
	for (k = room + 1; k > 1; k--)
		if (substr(s, k, 1) == " " && outside(substr(s, 1, k))) return k
	return 0
}

function put_code(s, at,    k, hang, note) {
	hang = s ~ /^\/\*/ ? 3 : 8
	if (at + length(s) > WIDTH && match(s, / \/\* .* \*\/$/)) { # its comment goes above
		note = substr(s, RSTART + 1); s = substr(s, 1, RSTART - 1)
		put_code(note, at)
	}
	while (at + length(s) > WIDTH && (k = break_at(s, WIDTH - at))) {
		put(blanks(at) substr(s, 1, k - 1))
		s = substr(s, k + 1); at += hang; hang = 0
	}
	put(blanks(at) s)
}

BEGIN { WIDTH = 69 }
/^@EXAMPLE@$/ {
	while ((getline line < readme) > 0) {
		if (line ~ /^```c$/) { on = 1; continue }
		if (on && line ~ /^```/) break
		if (!on) continue
		match(line, /^\t*/)
		put_code(substr(line, RLENGTH + 1), 4 * RLENGTH)
	}
	close(readme)
	next
}
{ gsub(/@VERSION@/, version); print }
