# SPDX-License-Identifier: Apache-2.0
# Makes the manual pages of section 3 from the public headers, whose comments are the documentation:
# a page for each header that declares calls, and for each call a name that leads to its page.
#
#   awk -v version=V -v see=PAGES -v dir=DIR -f man/text.awk -f man/header.awk include/kvring/*.h
#       writes DIR/man3/*.3; PAGES are others to see, such as "ring-dump.1 kvring.7"
#   awk -v list=1 -f man/text.awk -f man/header.awk include/kvring/*.h
#       names them: man3/NAME.3
#
# What it knows of a comment: lines that are indented further than others are a table or a list and
# stay as they are; `x` and *x* are in italics; calls, constants and errors are bold. What is
# declared without an empty line between is one subsection, unless a comment begins another.
# POSIX awk; mawk has no {n,m}.

function put(s) { print line_of(s) >page }

# --- text and tables of a comment ---------------------------------------------------------------
# Running text: hyphens between words stay hyphens, the sign of an error or of an arrow is a minus.
function markup(s,    out, w, c) {
	while (s != "") {
		c = substr(s, 1, 1)
		if (match(s, /^-E[A-Z][A-Z0-9]+/) || match(s, /^KVR_[A-Z0-9_]+/) ||
		    match(s, /^kvr_[a-z0-9_]+\(\)/)) {
			w = substr(s, 1, RLENGTH); s = substr(s, RLENGTH + 1)
			c = sub(/\(\)$/, "", w) ? "()" : ""
			out = out "\\fB" escaped(w, 1) "\\fP" c
		} else if (match(s, /^`[^`]+`/) || (match(s, /^\*[A-Za-z][^*]*[A-Za-z]\*/) &&
			   substr(s, RLENGTH + 1) !~ /^[A-Za-z_]/)) {
			w = substr(s, 2, RLENGTH - 2); s = substr(s, RLENGTH + 1)
			out = out "\\fI" escaped(w, c == "`") "\\fP"
		} else if (match(s, /^(--?[a-z0-9]|->|- )/) && out ~ /(^|[ (=])$/) {
			w = substr(s, 1, RLENGTH); s = substr(s, RLENGTH + 1)
			out = out escaped(w, 1)
		} else if (match(s, /^[A-Za-z0-9_]+/)) {
			out = out substr(s, 1, RLENGTH); s = substr(s, RLENGTH + 1)
		} else {
			out = out escape(c, 0); s = substr(s, 2)
		}
	}
	return out
}

function fill(s,    n, i, w, line) { # sentences begin on lines of their own
	n = split(markup(s), w, " ")
	for (i = 1; i <= n; i++) {
		if (line != "" && (length(line) + length(w[i]) > 78 ||
				   (w[i - 1] ~ /[.!?]\)?$/ && w[i] ~ /^[^a-z]/))) {
			put(line); line = ""
		}
		line = line (line == "" ? "" : " ") w[i]
	}
	if (line != "") put(line)
}

# Breaks `s`, which begins at column `at`, at blanks; further lines begin at column `hang`.
function wrap(s, at, hang,    out, k) {
	while (at + length(s) > WIDTH) {
		for (k = WIDTH - at + 1; k > 1 && substr(s, k, 1) != " "; k--) ;
		if (substr(s, k) == " */") for (k--; k > 1 && substr(s, k, 1) != " "; k--) ;
		if (k <= 1 || substr(s, 1, k) ~ /^ *$/) break
		out = out substr(s, 1, k - 1) "\n" blanks(hang)
		s = trim(substr(s, k)); at = hang
	}
	return out s
}

# Where the columns of a table's row begin; one column: the indent.
function columns(s, col,    n, rest) {
	col[n = 1] = indent_of(s)
	for (rest = substr(s, col[1] + 1); match(rest, /   *[^ ]/); ) {
		col[n + 1] = length(s) - length(rest) + RSTART + RLENGTH - 2
		rest = substr(s, col[++n] + 1)
	}
	return n
}

# Does `s` go on with the row before, which the header's 100 columns broke and a page's would again?
function goes_on(row, s, source,    word, n, col, own) {
	n = columns(row, col)
	if (columns(s, own) > 1 || own[1] != col[n]) return 0
	if (n > 1) return length(row) > WIDTH
	word = trim(s); sub(/ .*/, "", word)
	return word !~ /^[A-Z]/ && source + 1 + length(word) > 100
}

function put_table_row(s,    n, col, k) {
	n = columns(s, col)
	if (n == 2 && length(s) > WIDTH && s ~ /^ *[A-Z][0-9]+ .*  [A-Z][0-9]+ /) {
		put_lines(trim_end(substr(s, 1, col[2]))) # a pair of accesses: one below the other
		s = blanks(col[1]) substr(s, col[2] + 1); n = 1
	}
	for (k = n; k > 1 && WIDTH - col[k] < 14; k--) ;
	put_lines(wrap(s, 0, col[k] + (k > 1 && k == n ? 0 : 3)))
}

function put_table(lines, n,    i, least, m, row, source) {
	least = indent_of(lines[1])
	for (i = 2; i <= n; i++) if (indent_of(lines[i]) < least) least = indent_of(lines[i])
	for (i = 1; i <= n; i++) {
		lines[i] = substr(lines[i], least + 1)
		if (m && goes_on(row[m], lines[i], source)) row[m] = row[m] " " trim(lines[i])
		else row[++m] = lines[i]
		source = length(lines[i]) + least + 3 # " * " in front
	}
	print ".RS 2\n.nf" >page
	for (i = 1; i <= m; i++) put_table_row(row[i])
	print ".fi\n.RE" >page
}

function put_literal(s,    n, i, line) {
	print ".RS 2\n.nf" >page
	n = split(s, line, "\n")
	for (i = 1; i <= n; i++) put_lines(expand(line[i]))
	print ".fi\n.RE" >page
}

function put_lines(s,    n, i, line) {
	n = split(s, line, "\n")
	for (i = 1; i <= n; i++) put(escaped(line[i], 1))
}

# A comment as paragraphs, `first` says whether the first one needs a request in front.
function prose(s, first,    n, i, line, text, table, m) {
	n = split(s "\n", line, "\n")
	text = ""; m = 0
	for (i = 1; i <= n; i++) {
		if (m && line[i] !~ /^  /) { put_table(table, m); m = 0; first = 1 }
		if (text != "" && line[i] ~ /^( |$)/) {
			if (first) print ".P" >page
			fill(text); text = ""; first = 1
		}
		if (line[i] ~ /^  /) {
			if (!m && first) print ".P" >page
			table[++m] = line[i]
		}
		else text = text (text == "" ? "" : " ") line[i]
	}
}

# --- declarations -------------------------------------------------------------------------------
# A prototype on lines that are broken after arguments; within one only if it is longer than a line.
function prototype(s,    n, arg, i, k, hang, longest, out, line) {
	n = arguments(s, arg)
	hang = index(s, "(")
	longest = length(arg[1]) - hang
	for (i = 2; i <= n; i++) if (length(arg[i]) > longest) longest = length(arg[i])
	if (hang + longest > PROTOTYPE) hang = 8
	line = arg[1]
	for (i = 2; i <= n; i++) {
		if (length(line) + 1 + length(arg[i]) > PROTOTYPE) {
			out = out line "\n"; line = blanks(hang) arg[i]
		} else line = line " " arg[i]
		while (length(line) > PROTOTYPE) {
			for (k = PROTOTYPE; k > 1 && substr(line, k - 1, 2) != ", "; k--) ;
			if (k == 1) break
			out = out substr(line, 1, k - 1) "\n"
			line = blanks(hang + 4) trim(substr(line, k))
		}
	}
	return out line
}

# Splits after the commas that are between arguments, not within those of a function pointer.
function arguments(s, piece,    n, k, m, part, depth) {
	n = split(s, part, ", "); m = 1; piece[1] = ""
	for (k = 1; k <= n; k++) {
		piece[m] = piece[m] part[k] (k < n ? "," : "")
		depth += gsub(/\(/, "(", part[k]) - gsub(/\)/, ")", part[k])
		if (k == n) break
		if (depth > 1) piece[m] = piece[m] " "
		else piece[++m] = ""
	}
	return m
}

function put_prototype(s,    n, i, line, out, w) { # bold, with the arguments' names in italics
	n = split(prototype(s), line, "\n")
	for (i = 1; i <= n; i++) {
		out = "\\fB"; s = line[i]
		while (match(s, /[A-Za-z_][A-Za-z0-9_]*(\[[0-9A-Za-z_]*\])?[,)]/)) {
			w = substr(s, RSTART, RLENGTH - 1)
			out = out escaped(substr(s, 1, RSTART - 1), 1)
			out = out (w == "void" ? w : "\\fI" escaped(w, 1) "\\fB")
			s = substr(s, RSTART + RLENGTH - 1)
			out = out substr(s, 1, 1); s = substr(s, 2)
		}
		print out escaped(s, 1) "\\fP" >page
	}
}

function add_row(code, note) {
	code = trim(code); note = trim(note); gsub(/[ \t]+/, " ", code); gsub(/[ \t]+/, " ", note)
	if (code == "" && note == "") return
	row_code[++rows] = code; row_note[rows] = note
}

# Splits a structure, an enumeration or macros into rows: code and the comment behind it, or one of
# them.
function read_rows(s,    n, i, line, k, code, note, inside) {
	rows = 0
	n = split(s, line, "\n")
	for (i = 1; i <= n; i++) {
		if (inside) {
			line[i] = trim(line[i])
			if (line[i] ~ /^\*($|[^\/])/) line[i] = substr(line[i], 2)
		} else {
			k = index(line[i], "/*")
			code = code " " (k ? substr(line[i], 1, k - 1) : line[i])
			if (k) { line[i] = substr(line[i], k + 2); inside = 1 }
		}
		if (inside) {
			k = index(line[i], "*/")
			note = note " " (k ? substr(line[i], 1, k - 1) : line[i])
			if (!k) continue
			inside = 0
		} else if (code !~ /[;,{}][ \t]*$/ && code !~ /^ *#/ &&
			   line[i + 1] !~ /^[ \t]*([}]|\/\*)/)
			continue # a member on two lines
		add_row(code, note); code = note = ""
	}
	add_row(code, note)
}

# A comment behind its code, from column k on; below it where there is no room; or of its own.
function put_row(code, note, at, k) {
	if (note != "") note = "/* " note " */"
	if (code == "") { put_lines(blanks(at) wrap(note, at, at + 3)); return }
	code = blanks(at) wrap(code, at, at + 4)
	if (note != "" && length(code) + 2 > k) {
		if (length(code) + 2 + length(note) <= WIDTH) k = length(code) + 2
		else { put_lines(code); code = "" }
	}
	if (note != "") code = code blanks(k - length(code)) wrap(note, k, k + 3)
	put_lines(code)
}

function widest_row(limit,    i, n, most) { # of those that have a comment
	for (i = 1; i <= rows; i++) {
		n = length(row_code[i])
		if (row_note[i] != "" && n > most && n <= limit) most = n
	}
	return most
}

function put_rows(s,    i, depth, most) {
	read_rows(s)
	most = widest_row(28)
	if (!most) most = widest_row(38)
	print ".RS 2\n.nf" >page
	for (i = 1; i <= rows; i++) {
		if (row_code[i] ~ /^[}]/) depth--
		put_row(row_code[i], row_note[i], 4 * depth, 4 * depth + most + 2)
		if (row_code[i] ~ /[{]$/) depth++
	}
	print ".fi\n.RE" >page
}

# --- a header as items: a comment and what it is about ------------------------------------------
function comment_text(s,    n, i, line, out) {
	n = split(s, line, "\n")
	for (i = 1; i <= n; i++) {
		if (i == 1) sub(/^\/\*+ ?/, "", line[i])
		else sub(/^[ \t]*\*?( |$)/, "", line[i])
		sub(/[ \t]*\*\/.*$/, "", line[i])
		if (line[i] ~ /^\/$/) line[i] = ""
		if (i == n && trim(line[i]) == "") break
		if (i == 1 && line[i] == "") continue
		out = out (out == "" ? "" : "\n") expand(line[i])
	}
	return out
}

function without_comments(s,    out, k) {
	while ((k = index(s, "/*"))) {
		out = out substr(s, 1, k - 1); s = substr(s, k + 2)
		s = substr(s, index(s, "*/") + 2)
	}
	return out s
}

# The constants of an enumeration without a name, as a list.
function constants(code) {
	sub(/^[^{]*[{]/, "", code); sub(/[}].*/, "", code); gsub(/=[^,]*/, "", code)
	gsub(/[ \t\n]/, "", code); sub(/,$/, "", code); gsub(/,/, ", ", code)
	return code
}

function new_item() { items++; comment[items] = ""; decls[items] = 0; about[items] = paragraph }

# Adds a declaration to the item: a call, an opaque type, rows (of members, constants, macros), or
# lines that stay as they are.
function add_decl(s,    name, kind, code, n) {
	code = without_comments(s); kind = "rows"; name = code
	if (code ~ /(^|[^A-Z_])KVR_API([^A-Z_]|$)/) {
		kind = "call"; sub(/KVR_API[ \t]*/, "", code); gsub(/[ \t\n]+/, " ", code)
		s = name = trim(code); sub(/ ?[[(;].*/, "", name); sub(/.*[ *]/, "", name)
	} else if (s ~ /^(struct|union|enum) [A-Za-z0-9_]+;/) {
		kind = "opaque"; s = trim(code); sub(/;/, "", name)
	} else if (s ~ /^#/) {
		if (s ~ /\n/) kind = "lines"
		sub(/^#[ \t]*define[ \t]+/, "", name); sub(/[^A-Za-z0-9_].*/, "", name)
	} else if (s ~ /^typedef/) {
		sub(/;[^;]*$/, "", name); sub(/^.*[ *}]/, "", name)
	} else {
		sub(/[ \t\n]*[{(].*/, "", name)
		if (name == "enum") name = constants(code)
		else if (name !~ /^(struct|union|enum) /) { # a function with its body
			sub(/;.*/, "", name); sub(/.*[ *]/, "", name)
			kind = "lines"
		}
	}
	n = ++decls[items]
	decl[items, n] = s; kinds[items, n] = kind; names[items, n] = trim(name)
}

# The lines of the declaration that begins at line i of file f; sets i_end.
function declaration(f, i,    s, code, opened) {
	for (; i <= lines[f]; i++) {
		s = s (s == "" ? "" : "\n") raw[f, i]
		code = without_comments(s)
		if (raw[f, i] ~ /\\$/ || (index(s, "/*") && open_comment(s))) continue
		opened = gsub(/[{]/, "", code); opened -= gsub(/[}]/, ";", code)
		if (s ~ /^#/ || (opened == 0 && code ~ /;[ \t]*$/)) break
	}
	i_end = i
	return s
}

function open_comment(s,    k) {
	while ((k = index(s, "/*"))) {
		s = substr(s, k + 2)
		if (!(k = index(s, "*/"))) return 1
		s = substr(s, k + 2)
	}
	return 0
}

function is_frame(s) { # what stands in every header
	return s ~ /^#[ \t]*(if|else|elif|endif|include|undef|pragma|error)/ ||
		s ~ /^#[ \t]*define[ \t]+KVRING_[A-Z_]*H$/ || s ~ /^[ \t]*$/
}

function parse(f,    i, s, blank) {
	items = 0; top = ""; paragraph = 1; blank = 1
	for (i = 1; i <= lines[f]; i++) {
		if (raw[f, i] ~ /SPDX-License-Identifier/) continue
		if (raw[f, i] ~ /^#[ \t]*ifdef[ \t]+__cplusplus/) {
			while (raw[f, i] !~ /^#[ \t]*endif/) i++
			blank = 1; continue
		}
		if (is_frame(raw[f, i])) { blank = 1; continue }
		if (blank) paragraph++
		if (raw[f, i] ~ /^\/\*/) {
			for (s = raw[f, i]; raw[f, i] !~ /\*\//; ) s = s "\n" raw[f, ++i]
			s = comment_text(s)
			if (top == "") { top = s; continue }
			if (!items || decls[items]) new_item() # else two comments about one thing
			comment[items] = comment[items] (comment[items] == "" ? "" : "\n\n") s
			blank = 0
			about[items] = paragraph
			continue
		}
		s = declaration(f, i); i = i_end
		if (!items || (blank && decls[items])) new_item()
		add_decl(s); blank = 0
	}
}

# --- pages --------------------------------------------------------------------------------------
function base(f,    s) { s = file[f]; sub(/.*\//, "", s); sub(/\.h$/, "", s); return "kvr_" s }
function include_of(f,    s) { s = file[f]; sub(/.*include\//, "", s); return s }

function title(k,    i, any, s, last) {
	for (i = 1; i <= decls[k]; i++) if (kinds[k, i] == "call") any = 1
	for (i = 1; i <= decls[k]; i++) {
		if (any && kinds[k, i] != "call") continue
		last = names[k, i] (decl[k, i] ~ /\(/ && any ? "()" : "")
		s = s (s == "" ? "" : ", ") last
	}
	if (!any && length(s) > 60) { # many constants
		sub(/,.*/, "", s); sub(/.*, /, "", last); s = s " ... " last
	}
	return s
}

# What whatis(1) shows: the first sentence of the header, or what it has to say of the noun.
function summary(s,    k) {
	gsub(/[\n ]+/, " ", s); gsub(/[*`]/, "", s)
	for (k = 1; k < length(s); k++)
		if (substr(s, k, 2) ~ /^\. ?$/ && index(substr(s, 1, k), " ")) break
	s = substr(s, 1, k); sub(/\.$/, "", s)
	if (match(s, /^[A-Za-z]+\. /)) # a title, and a sentence
		s = substr(s, 1, RLENGTH - 2) ": " tolower(substr(s, RLENGTH + 1, 1)) \
			substr(s, RLENGTH + 2)
	if (length(s) > 100) sub(/[:;].*/, "", s)
	return tolower(substr(s, 1, 1)) substr(s, 2)
}

# A call's prototype comes first and then what it does; a type after what it is.
function put_item(k,    i, s, calls, notes) {
	for (i = 1; i <= decls[k]; i++) {
		if (kinds[k, i] == "call") calls++
		else if (decl[k, i] ~ /\/\*/) notes++
	}
	if (kinds[k, 1] == "opaque" && decls[k] == 1 && comment[k] == "") return # see SYNOPSIS
	print ".SS " escaped(title(k), 0) >page
	if (comment[k] != "" && (!calls || notes)) { prose(comment[k], 0); print ".P" >page }
	for (i = 1; i <= decls[k]; i++) {
		s = decl[k, i]
		if (kinds[k, i] == "call") {
			print ".nf" >page; put_prototype(s); print ".fi" >page
		} else if (kinds[k, i] == "lines") {
			put_literal(s)
		} else {
			while (i < decls[k] && s ~ /^#/ && decl[k, i + 1] ~ /^#/ &&
			       kinds[k, i + 1] == "rows")
				s = s "\n" decl[k, ++i]
			put_rows(s)
		}
		if (i < decls[k] && (kinds[k, i + 1] != kinds[k, i] || s ~ /\n/)) print ".P" >page
	}
	if (comment[k] != "" && calls && !notes) prose(comment[k], 1)
}

function put_name(f,    k, i, s) {
	s = base(f)
	for (k = 1; k <= items; k++)
		for (i = 1; i <= decls[k]; i++)
			if (kinds[k, i] == "call" && names[k, i] != base(f)) s = s ",\n" names[k, i]
	print ".SH NAME\n" s "\n\\- " escaped(summary(top), 0) >page
	print ".SH LIBRARY\nkvring (\\fIlibkvring\\fP, \\fI\\-lkvring\\fP)" >page
}

function put_synopsis(f,    k, i, last) {
	print ".SH SYNOPSIS\n.nf\n\\fB#include <" escaped(include_of(f), 1) ">\\fP" >page
	for (k = 1; k <= items; k++)
		for (i = 1; i <= decls[k]; i++) {
			if (kinds[k, i] != "call" && kinds[k, i] != "opaque") continue
			if (about[k] != last) print ".sp" >page
			last = about[k]
			put_prototype(decl[k, i])
		}
	print ".fi" >page
}

function put_end(f,    g, n, w) {
	print ".SH RETURN VALUE" >page
	fill("Unless its description says otherwise, a call that returns int gives 0 or a count " \
	     "on success, and a negative errno value on failure; kvr_explain() then returns a " \
	     "sentence about the last failure on this thread.")
	if (base(f) != "kvr_err") {
		print ".SH ERRORS" >page
		fill("What an error means for a call stands with the call, what it means for all")
		print "in\n.BR kvr_err (3)." >page
	}
	print ".SH SEE ALSO" >page
	n = split(see, w, " ")
	for (g = 1; g <= files; g++) if (g != f && paged[g]) w[++n] = base(g) ".3"
	sort_see(w, n)
	for (g = 1; g <= n; g++)
		print ".BR " escaped(substr(w[g], 1, length(w[g]) - 2), 1) \
			" (" section_of(w[g]) ")" (g < n ? "," : "") >page
}

function section_of(s) { return substr(s, length(s)) } # name.3: 3

function sort_see(w, n,    i, j, t) { # by section, then by name
	for (i = 2; i <= n; i++)
		for (j = i; j > 1 && section_of(w[j]) w[j] < section_of(w[j - 1]) w[j - 1]; j--) {
			t = w[j]; w[j] = w[j - 1]; w[j - 1] = t
		}
}

function write_page(f,    k) {
	page = dir "/man3/" base(f) ".3"
	print ".\\\" SPDX-License-Identifier: Apache-2.0" >page
	print ".\\\" Made from " include_of(f) " by header.awk: change that, not this." >page
	print ".TH " toupper(base(f)) " 3 \"\" \"kvring " version "\" \"kvring manual\"" >page
	print ".nh\n.ad l" >page
	put_name(f)
	put_synopsis(f)
	print ".SH DESCRIPTION" >page
	prose(top, 0)
	for (k = 1; k <= items; k++) put_item(k)
	put_end(f)
	close(page)
}

function names_of(f,    k, i, out) { # an alias for each call; one of them may be the page itself
	for (k = 1; k <= items; k++)
		for (i = 1; i <= decls[k]; i++) {
			if (kinds[k, i] != "call" || names[k, i] == base(f)) continue
			out = "man3/" names[k, i] ".3"
			if (list) { print out; continue }
			print ".so man3/" base(f) ".3" >(dir "/" out)
			close(dir "/" out)
		}
	if (list) print "man3/" base(f) ".3"
}

BEGIN { WIDTH = 69; PROTOTYPE = 71 } # columns: of a literal line, which is indented, of a prototype
FNR == 1 { file[++files] = FILENAME }
{ raw[files, FNR] = $0; lines[files] = FNR }
/^KVR_API / { paged[files] = 1 }
END {
	for (f = 1; f <= files; f++) {
		if (!paged[f]) continue
		parse(f)
		if (!list) write_page(f)
		names_of(f)
	}
}
