#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# This checks portability, not memory ordering: qemu-user runs arm64 code on this machine's own
# cores, which on x86 order more than an arm64 core does.
#
# "make check-arm64" calls it, for programs $B/qemu/test_NOUN.elf that CC, a cross compiler, made:
#   run.sh can       fails, and says why, when CC or QEMU is missing
#   run.sh NOUN...   runs each with QEMU, like tests/run.sh, but what tests/arm64/skip names
set -u
LC_ALL=C
export LC_ALL
B=${B:-build/arm64}
CC=${CC:-aarch64-linux-gnu-gcc}
QEMU=${QEMU:-qemu-aarch64}
skip=tests/arm64/skip

if [ "${1:-}" = can ]; then
	tmp=$(mktemp -d) || exit 1
	trap 'rm -rf "$tmp"' EXIT
	for need in "$CC" "$QEMU"; do
		command -v "$need" >/dev/null && continue
		echo "skipped: no $need here, arm64 was not checked"
		exit 1
	done
	if ! echo 'int main(void) { return 0; }' |
		"$CC" -static -x c -o "$tmp/probe" - 2>/dev/null; then
		echo "skipped: $CC does not link (on Debian: libc6-dev-arm64-cross)," \
			"arm64 was not checked"
		exit 1
	fi
	"$QEMU" "$tmp/probe" && exit 0
	echo "skipped: $QEMU does not run what $CC makes, arm64 was not checked"
	exit 1
fi

programs=
for noun in "$@"; do
	why=$(sed -n "s/^$noun: //p" "$skip")
	if [ -n "$why" ]; then
		echo "  skip  test_$noun: $why"
		continue
	fi
	# tests/run.sh starts programs by their name; not every machine starts foreign ones.
	prog=$B/qemu/test_$noun
	printf '#!/bin/sh\nexec %s %s.elf\n' "$QEMU" "$prog" >"$prog" && chmod +x "$prog" || exit 1
	programs="$programs $prog"
done
# Translated code runs several times slower than the machine's own.
CK_TIMEOUT_MULTIPLIER=${CK_TIMEOUT_MULTIPLIER:-10}
KVR_TEST_LIMIT=${KVR_TEST_LIMIT:-900}
CHECK_SKIP=$skip
export CK_TIMEOUT_MULTIPLIER KVR_TEST_LIMIT CHECK_SKIP
# shellcheck disable=SC2086
sh tests/run.sh $programs
