#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs into a scratch root, compiles the README's program against it through pkg-config and runs
# it, with the shared and the static library; then uninstalls and looks for what stayed. Twice: into
# a PREFIX of its own, and as a packager does it, through DESTDIR. "make check-install" calls it.
set -u
CC=${CC:-cc}
B=${B:-build}
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that called this: its job server is not for us
mkdir -p "$B" || exit 1
root=$(mktemp -d "$(cd "$B" && pwd)/install.XXXXXX") || exit 1
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM HUP

passed=0
failed=0
check() { # what it is, then the command
	what=$1
	shift
	if "$@" >"$root/out" 2>&1; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "  FAIL  $what"
		sed 's/^/        /' "$root/out"
	fi
}

program=README.md
src=$root/program.c
[ ! -f README.md ] || awk '/^```c$/ { on = 1; next } /^```/ && on { exit } on' README.md >"$src"
if [ ! -s "$src" ]; then
	program="a program of two lines"
	printf '#include <kvring.h>\nint main(void) { return kvr_explain()[0] != 0; }\n' >"$src"
fi

shared() {
	# shellcheck disable=SC2046
	$CC -Wall -Wextra -Werror -o "$1" $($pc --cflags kvring) "$src" $($pc --libs kvring)
}
static() { # kvring from its archive, the libraries it needs as they come
	libs=$($pc --static --libs kvring | sed 's/-lkvring/-l:libkvring.a/')
	# shellcheck disable=SC2046,SC2086
	$CC -Wall -Wextra -Werror -o "$1" $($pc --cflags kvring) "$src" $libs
}
no_files() {
	left=$(find "$1" -not -type d)
	[ -z "$left" ] || { echo "still there: $left"; return 1; }
}
pages() { # a manual page for each call, found by its name where there is a man
	sed -n 's/^\t\(kvr_[a-z0-9_]*\);$/\1/p' lib/kvring.map | while read -r call; do
		[ -f "$1/man3/$call.3" ] || echo "no man3/$call.3"
	done | grep . && return 1
	command -v man >/dev/null || return 0
	man -M "$1" 3 kvr_connector_lookup | grep 'KVR_CONNECTOR(3)' &&
		man -M "$1" 7 kvring | grep 'KVRING(7)'
}
says() { # pkg-config file, text that it must hold, text that it must not hold
	cat "$1"
	grep -qF "$2" "$1" && ! grep -qF "$3" "$1"
}

prefix=$root/prefix
pc="env PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config"
check "make install PREFIX=..." make B="$B" PREFIX="$prefix" install
check "$program compiles (shared)" shared "$root/shared"
check "$program runs (shared)" env LD_LIBRARY_PATH="$prefix/lib" timeout 60 "$root/shared"
check "$program compiles (static)" static "$root/static"
check "$program runs (static)" timeout 60 "$root/static"
for tool in "$prefix"/bin/*; do
	[ ! -e "$tool" ] || check "${tool##*/} --help" timeout 60 "$tool" --help
done
check "manual pages" pages "$prefix/share/man"
check "make uninstall PREFIX=..." make B="$B" PREFIX="$prefix" uninstall
check "nothing stayed" no_files "$prefix"

dest=$root/dest
libdir=/usr/lib/$(uname -m)-linux-gnu
set -- B="$B" DESTDIR="$dest" PREFIX=/usr LIBDIR="$libdir"
check "make install DESTDIR=..." make "$@" install
check "kvring.pc names no scratch root" says "$dest$libdir/pkgconfig/kvring.pc" \
	"libdir=$libdir" "$root"
check "make uninstall DESTDIR=..." make "$@" uninstall
check "nothing stayed in DESTDIR" no_files "$dest"

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
