# SPDX-License-Identifier: Apache-2.0
# GNU make 4.3 or newer. "make help" lists the targets. Everything lands in $(B), the tools as
# build/kv-replay and build/ring-dump. V=1 shows the commands.
#
# No configure step: reading this file needs no compiler and no pkg-config, so that
# "make deps run" works in one go on a machine that has only make and git. What pkg-config says is
# therefore looked up in recipes (lazily, once), never while this file is read.
NAME    := kvring
VERSION := $(shell sed -n 's/^.define KVR_VERSION_STRING "\(.*\)"/\1/p' include/kvring/version.h)
SOVER   := $(firstword $(subst ., ,$(VERSION)))
MAKEFLAGS += --no-builtin-rules

# --- what a packager or a user may set -------------------------------------------------------
B          := build
CFLAGS     ?= -O2 -g
CXXFLAGS   ?= $(CFLAGS)
INSTALL    ?= install
PKG_CONFIG ?= pkg-config
PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR     ?= $(PREFIX)/share/man
AWK        ?= awk
WERROR     ?=
SAN        :=
T          := *
ROUNDS     := 100
ARGS       := --requests 200 --ranks 4 --block-bytes 256KiB --host 64MiB --nvme 1GiB

# --- what is added whatever they set; their own flags come last --------------------------------
WARN   := -Wall -Wextra -Wshadow -Wconversion -Wvla -Wundef -Wcast-align -Wpointer-arith \
          -Wmissing-prototypes -Wstrict-prototypes -Wwrite-strings $(WERROR)
STD    := -std=gnu17 -D_GNU_SOURCE -fvisibility=hidden -fPIC -pthread
SANFL  := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
pkg     = $(shell $(PKG_CONFIG) $(1) 2>/dev/null || echo $(2))
# The eval replaces the variable by its value at the first use: one run of pkg-config each.
DEP_CF  = $(eval DEP_CF := $(call pkg,--cflags liburing numa))$(DEP_CF)
DEP_LD  = $(eval DEP_LD := $(call pkg,--libs liburing numa,-luring -lnuma))$(DEP_LD)
CHK_CF  = $(eval CHK_CF := $(call pkg,--cflags check))$(CHK_CF)
CHK_LD  = $(eval CHK_LD := $(call pkg,--libs check,-lcheck -lsubunit -lm -lrt))$(CHK_LD)
COMPILE = $(CC) $(STD) $(WARN) -MMD -MP -Iinclude $(INC) $(CPPFLAGS) $(DEP_CF) $(SANFL) $(CFLAGS)
# Linked by $(CC), hence nothing that needs the C++ library. No sanitizers: they are the compiler's.
COMPILE_CXX = $(CXX) $(patsubst -std=gnu17,-std=gnu++17,$(STD)) -fno-exceptions -fno-rtti \
	$(filter-out -Wmissing-prototypes -Wstrict-prototypes,$(WARN)) -MMD -MP -Iinclude \
	$(CPPFLAGS) $(CXXFLAGS)
LINK    = $(CC) -pthread $(SANFL) $(CFLAGS) $(LDFLAGS)
LIBS    = $(DEP_LD) -lrt

# --- what is built from what -------------------------------------------------------------------
objs       = $(patsubst %.c,$(B)/%.o,$(1))
chosen     = $(sort $(foreach t,$(T),$(wildcard $(1)$(t)$(2))))
STATIC    := $(B)/lib$(NAME).a
SHARED    := $(B)/lib$(NAME).so.$(VERSION)
LIB_OBJ   := $(call objs,$(sort $(wildcard lib/*.c)))
HEADERS   := $(wildcard include/kvring/*.h)

# A tool is tools/NAME.c ('_' becomes '-') and the files named here that belong to it.
kv-replay_SRC := $(wildcard tools/kv_replay.c tools/replay_*.c)
ring-dump_SRC := $(wildcard tools/ring_dump.c tools/dump_*.c)
TOOLS     := kv-replay ring-dump
TOOLS     := $(foreach t,$(TOOLS),$(if $($(t)_SRC),$(t)))
TOOL_BIN  := $(TOOLS:%=$(B)/%)

# Adding a test, a stress program or a bench is adding a file. Other files in tests/ and bench/
# are helpers, linked into every program of their directory; tests/stress_NAME_*.c into that one.
TEST_BIN   := $(patsubst %.c,$(B)/%,$(wildcard tests/test_*.c))
STRESS_ALL := $(wildcard tests/stress_*.c)
STRESS_SRC := $(filter-out $(STRESS_ALL:.c=_%.c),$(STRESS_ALL))
STRESS_BIN := $(STRESS_SRC:%.c=$(B)/%)
TEST_OBJ   := $(call objs,$(filter-out tests/test_% tests/stress_%,$(wildcard tests/*.c)))
BENCH_SRC  := $(wildcard bench/bench_*.c)
BENCH_BIN  := $(subst _,-,$(BENCH_SRC:bench/%.c=$(B)/%))
BENCH_CXX  := $(patsubst %.cc,$(B)/%.o,$(wildcard bench/*.cc))
BENCH_OBJ  := $(call objs,$(filter-out bench/bench_%,$(wildcard bench/*.c))) $(BENCH_CXX)
T_TEST     := $(call chosen,tests/test_,.c)
T_PY       := $(call chosen,tests/test_,.py)
T_STRESS   := $(filter $(STRESS_SRC),$(call chosen,tests/stress_,.c))
T_BENCH    := $(call chosen,bench/bench_,.c)
T_MODEL    := $(call chosen,tests/model/,.sh)

# Fuzz targets; and the tests of another machine, with a stand-in for Check.
FUZZ_SRC     := $(wildcard tests/fuzz/fuzz_*.c)
T_FUZZ       := $(call chosen,tests/fuzz/fuzz_,.c)
FUZZ_CC      ?= clang
FUZZ_SECONDS := 60
ARM64        ?= aarch64-linux-gnu-
QEMU         ?= qemu-aarch64
ARM64_SKIP   := $(shell sed -n 's/^\([a-z_]*\):.*/\1/p' tests/arm64/skip)
ARM64_TEST   := $(filter-out $(ARM64_SKIP:%=tests/test_%.c),$(T_TEST))

# Goals that must be over before anything is compiled, in whatever order and with whatever -j.
FIRST := $(filter deps clean,$(MAKECMDGOALS))

ifneq ($(V),1)
Q   := @
say  = @printf '  %-7s %s\n' $(1) $(2)
endif
quote = '$(subst ','\'',$(1))'

.DEFAULT_GOAL := all
.SECONDARY:
.DELETE_ON_ERROR:
.PHONY: all everything deps deps-ci run check check-asan check-tsan check-install check-arm64 \
	check-arm64-run bench stress fuzz fuzz-run model lint format man install uninstall \
	clean help FORCE

all: $(STATIC) $(SHARED) $(TOOL_BIN) $(B)/man/made ## the library (static, shared), tools, man pages
everything: all $(TEST_BIN) $(STRESS_BIN) $(BENCH_BIN) ## also tests, stress programs and benches

everything: $(call objs,$(FUZZ_SRC) tests/arm64/check.c) # these compile everywhere

# Manual pages: section 3 from the headers, with a name for each call; others are written by hand.
MAN_SRC := $(wildcard man/*.[1-9])
MAN_DIR := $(sort man3 $(foreach f,$(MAN_SRC),$(patsubst .%,man%,$(suffix $(f)))))
MAN_AWK  = $(AWK) -v version=$(VERSION) -f man/text.awk -f
man: $(B)/man/made                           ## the manual pages: man -l build/man/man3/kvr_group.3
# The directories themselves: a header or a page may be gone.
MAN_DEP := $(HEADERS) $(MAN_SRC) $(wildcard man/*.awk README.md include/kvring/. man/.)
$(B)/man/made: $(MAN_DEP) | $(FIRST)
	$(call say,MAN,$(@D))
	$(Q)rm -rf $(@D) && mkdir -p $(MAN_DIR:%=$(@D)/%)
	$(Q)$(MAN_AWK) man/header.awk -v see='$(notdir $(MAN_SRC))' -v dir=$(@D) $(HEADERS)
	$(Q)for f in $(MAN_SRC); do $(MAN_AWK) man/page.awk -v readme=README.md $$f \
		>$(@D)/man$${f##*.}/$${f##*/} || exit 1; done
	$(Q)touch $@
MAN_FILES = $(foreach f,$(MAN_SRC),$(patsubst .%,man%,$(suffix $(f)))/$(notdir $(f))) \
	$(shell $(MAN_AWK) man/header.awk -v list=1 $(HEADERS))

# Flags that changed rebuild everything: no stale mixture in one directory.
$(B)/flags: INC := # not that of the object that asks first
$(B)/flags: FORCE | $(FIRST)
	@mkdir -p $(@D)
	@printf '%s\n' $(call quote,$(COMPILE) / $(COMPILE_CXX) / $(LINK)) | cmp -s - $@ || \
		printf '%s\n' $(call quote,$(COMPILE) / $(COMPILE_CXX) / $(LINK)) >$@

# The library and its tests may see lib/*.h, tools and benches only include/. -iquote, not -I:
# lib/sched.h and others must not shadow the system's <sched.h>.
$(B)/lib/%.o: INC = -iquote lib
$(B)/tests/%.o: INC = -iquote lib -iquote tests $(CHK_CF)
ALL_OBJ := $(call objs,$(wildcard lib/*.c tests/*.c tests/*/*.c tools/*.c bench/*.c))
$(ALL_OBJ): $(B)/%.o: %.c $(B)/flags | $(FIRST)
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D)
	$(Q)$(COMPILE) -c -o $@ $<

# C++ is optional, and for benches alone: an empty object where there is no compiler for it.
$(BENCH_CXX): $(B)/%.o: %.cc $(B)/flags | $(FIRST)
	$(call say,CXX,$<)
	$(Q)mkdir -p $(@D)
	$(Q)if command -v $(firstword $(CXX)) >/dev/null; then $(COMPILE_CXX) -c -o $@ $<; \
	else $(COMPILE) -c -o $@ -x c /dev/null; fi

$(STATIC): $(LIB_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# Links beside the shared library let programs and FFI load it from the build directory.
$(SHARED): $(LIB_OBJ) lib/$(NAME).map
	$(call say,LD,$@)
	$(Q)$(LINK) -shared -Wl,-soname,lib$(NAME).so.$(SOVER) $(if $(SAN),,-Wl,-z,defs) \
		-Wl,--version-script=lib/$(NAME).map -o $@ $(LIB_OBJ) $(LIBS)
	$(Q)ln -sf lib$(NAME).so.$(VERSION) $(B)/lib$(NAME).so.$(SOVER)
	$(Q)ln -sf lib$(NAME).so.$(SOVER) $(B)/lib$(NAME).so

$(foreach t,$(TOOLS),$(eval $(B)/$(t): $(call objs,$($(t)_SRC))))
$(foreach s,$(BENCH_SRC),$(eval $(subst _,-,$(s:bench/%.c=$(B)/%)): $(call objs,$(s)) $(BENCH_OBJ)))
$(TOOL_BIN) $(BENCH_BIN): $(STATIC)
	$(call say,LD,$@)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(STATIC) $(LIBS) -lm

$(foreach s,$(STRESS_SRC),$(eval $(s:%.c=$(B)/%): $(call objs,$(wildcard $(s:.c=_*.c)))))
$(TEST_BIN) $(STRESS_BIN): %: %.o $(TEST_OBJ) $(STATIC)
	$(call say,LD,$@)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(STATIC) $(CHK_LD) $(LIBS)

# What ring-dump prints is fuzzed, too.
$(B)/tests/fuzz/fuzz_dump: $(call objs,$(filter tools/dump_%,$(ring-dump_SRC)))
$(FUZZ_SRC:%.c=$(B)/%): %: %.o $(STATIC)
	$(call say,LD,$@)
	$(Q)$(LINK) -fsanitize=fuzzer -o $@ $(filter %.o,$^) $(STATIC) $(LIBS)

# From an archive, so that helpers are linked where they are used: some need libraries that are not
# there for the other machine.
$(B)/libtests.a: $(TEST_OBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@ && $(AR) rcs $@ $^
ARM64_ELF := $(ARM64_TEST:tests/%.c=$(B)/qemu/%.elf)
$(ARM64_ELF): $(B)/qemu/%.elf: $(B)/tests/%.o $(B)/tests/arm64/check.o $(B)/libtests.a $(STATIC)
	$(call say,LD,$@)
	$(Q)mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $^ -lrt -lm

# --- what to do with it ------------------------------------------------------------------------
run: $(B)/kv-replay                          ## the main job: kv-replay $(ARGS)
	$(Q)$(B)/kv-replay $(ARGS)

KVR_LIB = $(abspath $(B))/lib$(NAME).so.$(SOVER)
RUNENV  = B=$(call quote,$(B)) SAN=$(SAN) V=$(V) KVR_LIB=$(call quote,$(KVR_LIB))
SUBMAKE = $(MAKE) --no-print-directory
# Tests chosen by T need their own programs alone, and the tools if they call test_tool().
USES = $(shell grep -lw $(1) $(T_TEST) /dev/null)
CHECK_NEEDS = $(if $(filter-out *,$(T)),$(if $(T_PY)$(call USES,KVR_LIB),$(SHARED)) \
	$(if $(call USES,test_tool),$(TOOL_BIN)),all)
check: $(CHECK_NEEDS) $(T_TEST:%.c=$(B)/%)   ## the tests; T='ring group' or T='st*' chooses
	@$(if $(T_TEST)$(T_PY),,echo "make: no tests/test_NAME for T='$(T)'" >&2; exit 1)
	$(Q)$(RUNENV) sh tests/run.sh $(T_TEST:%.c=$(B)/%) $(T_PY)
check-asan: | $(FIRST)                       ## the same with address and undefined sanitizers
	+$(Q)$(SUBMAKE) B=$(B)/asan SAN=address,undefined T=$(call quote,$(T)) check
check-tsan: | $(FIRST)                       ## the same with the thread sanitizer
	+$(Q)$(SUBMAKE) B=$(B)/tsan SAN=thread T=$(call quote,$(T)) check
check-arm64: | $(FIRST)                      ## some tests, built for arm64, under qemu-user
	+$(Q)if CC=$(ARM64)gcc QEMU=$(QEMU) sh tests/arm64/run.sh can; then \
		$(SUBMAKE) B=$(B)/arm64 T=$(call quote,$(T)) CC=$(ARM64)gcc AR=$(ARM64)ar \
			WERROR=-Werror CPPFLAGS='-isystem tests/arm64' LDFLAGS=-static \
			DEP_CF= CHK_CF= check-arm64-run; fi
check-arm64-run: $(ALL_OBJ) $(ARM64_ELF)     # everything compiles; some of it can be linked
	$(Q)$(RUNENV) QEMU=$(QEMU) sh tests/arm64/run.sh $(T_TEST:tests/test_%.c=%)
check-install: all                           ## install to a scratch root, use it, uninstall
	$(Q)CC=$(call quote,$(CC)) B=$(call quote,$(B)) sh tests/install.sh
stress: all $(T_STRESS:%.c=$(B)/%)           ## long seeded runs; T=store SEED=1 ROUNDS=100
	@$(if $(T_STRESS),,echo "make: no tests/stress_NAME.c for T='$(T)'")
	$(Q)$(RUNENV) SEED=$(SEED) ROUNDS=$(ROUNDS) STRESS=1 sh tests/run.sh $(T_STRESS:%.c=$(B)/%)
fuzz: | $(FIRST)                             ## each target FUZZ_SECONDS=60 long; T=ring
	@$(if $(T_FUZZ),,echo "make: no tests/fuzz/fuzz_NAME.c for T='$(T)'" >&2; exit 1)
	+$(Q)if CC=$(call quote,$(FUZZ_CC)) sh tests/fuzz/run.sh can; then \
		$(SUBMAKE) B=$(B)/fuzz T=$(call quote,$(T)) CC=$(call quote,$(FUZZ_CC)) \
			SAN=fuzzer-no-link,address,undefined fuzz-run; fi
fuzz-run: $(T_FUZZ:%.c=$(B)/%)
	$(Q)$(RUNENV) FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_ARGS=$(call quote,$(FUZZ_ARGS)) \
		sh tests/fuzz/run.sh $^
T_BENCH_BIN := $(subst _,-,$(T_BENCH:bench/%.c=$(B)/%))
bench: $(T_BENCH_BIN)                        ## every benchmark in turn; T=ring chooses
	$(Q)sh bench/run.sh $(T_BENCH_BIN)
model:                                       ## memory order and waiting, by model checkers; T=ring
	@$(if $(T_MODEL),,echo "make: no tests/model/NAME.sh for T='$(T)'" >&2; exit 1)
	$(Q)failed=0; for s in $(T_MODEL); do \
		B=$(call quote,$(B)) CC=$(call quote,$(CC)) sh $$s || failed=1; done; exit $$failed
lint: $(SHARED) $(B)/man/made                ## layers, order letters, exports, headers, man pages
	$(Q)failed=0; CC=$(call quote,$(CC)) SHARED=$(call quote,$(SHARED)) sh tests/lint.sh || \
		failed=1; CC=$(call quote,$(CC)) B=$(call quote,$(B)) sh tests/man.sh || failed=1; \
		exit $$failed
format:                                      ## clang-format 14 in place
	clang-format -i $(wildcard include/*.h include/*/*.h lib/*.[ch] t*/*.[ch] t*/*/*.[ch]* \
		bench/*.[ch]*)

# --- packages: Debian 12 names. deps is enough for run and check; deps-ci adds what .ci/run uses -
PACKAGES    := gcc libc6-dev pkg-config liburing-dev libnuma-dev libxxhash-dev check \
               libsubunit-dev python3
PACKAGES_CI := g++ clang clang-format clang-tidy shellcheck libclang-rt-dev relacy-dev spin \
               gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user libck-dev libboost-dev \
               groff-base mandoc
APT := apt-get install -q -y --no-install-recommends
define apt
@missing=; \
for p in $(1); do \
	case $$(dpkg-query -W -f='$${db:Status-Abbrev}' $$p 2>/dev/null) in \
	ii*) ;; *) missing="$$missing $$p" ;; esac; \
done; \
if [ -z "$$missing" ]; then echo "deps: nothing is missing"; exit 0; fi; \
if ! command -v apt-get >/dev/null; then \
	echo "deps: this system has no apt-get. Install with its own package manager:" >&2; \
	echo "  $(2)" >&2; \
	echo "(Debian's packages:$$missing), then run make without deps." >&2; exit 1; \
fi; \
as=; \
if [ "$$(id -u)" != 0 ]; then as=sudo; \
	if ! command -v sudo >/dev/null; then \
		echo "deps: missing:$$missing. Not root, and no sudo. Run as root:" >&2; \
		echo "  apt-get update && $(APT)$$missing" >&2; exit 1; \
	fi; \
fi; \
echo "deps: installing$$missing"; \
$$as apt-get update -q; $$as env DEBIAN_FRONTEND=noninteractive $(APT)$$missing
endef
NEED    := gcc, libc headers, pkg-config, liburing, libnuma, xxhash, check, subunit, python3
NEED_CI := g++, clang and its run-time libraries, clang-format, clang-tidy, shellcheck, \
           relacy, spin, gcc for arm64, qemu-user, ck, boost, groff, mandoc
deps:                                        ## installs what is missing for run and check (apt)
	$(call apt,$(PACKAGES),$(NEED))
deps-ci: | $(filter deps,$(FIRST))           ## also what lint and .ci/run use (g++, clang tools)
	$(call apt,$(PACKAGES_CI),$(NEED_CI))

# --- install: uninstall removes exactly what install put there ----------------------------------
install: all                                 ## honours DESTDIR, PREFIX, LIBDIR, MANDIR and so on
	$(INSTALL) -d $(addprefix $(DESTDIR),$(LIBDIR)/pkgconfig $(INCLUDEDIR)/$(NAME) $(BINDIR) \
		$(MAN_DIR:%=$(MANDIR)/%))
	$(INSTALL) -m 644 $(STATIC) $(DESTDIR)$(LIBDIR)/
	$(INSTALL) -m 755 $(SHARED) $(DESTDIR)$(LIBDIR)/
	ln -sf lib$(NAME).so.$(VERSION) $(DESTDIR)$(LIBDIR)/lib$(NAME).so.$(SOVER)
	ln -sf lib$(NAME).so.$(SOVER) $(DESTDIR)$(LIBDIR)/lib$(NAME).so
	$(INSTALL) -m 644 include/$(NAME).h $(DESTDIR)$(INCLUDEDIR)/
	$(INSTALL) -m 644 $(HEADERS) $(DESTDIR)$(INCLUDEDIR)/$(NAME)/
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(INCLUDEDIR)|' \
		-e 's|@VERSION@|$(VERSION)|' lib/$(NAME).pc.in \
		>$(DESTDIR)$(LIBDIR)/pkgconfig/$(NAME).pc
	$(if $(TOOL_BIN),$(INSTALL) -m 755 $(TOOL_BIN) $(DESTDIR)$(BINDIR)/)
	for d in $(sort $(dir $(MAN_FILES))); do \
		$(INSTALL) -m 644 $(B)/man/$$d* $(DESTDIR)$(MANDIR)/$$d || exit 1; done
uninstall:                                   ## removes exactly what install put there
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,lib$(NAME).a lib$(NAME).so lib$(NAME).so.$(SOVER) \
		lib$(NAME).so.$(VERSION) pkgconfig/$(NAME).pc)
	rm -f $(addprefix $(DESTDIR)$(INCLUDEDIR)/,$(NAME).h $(HEADERS:include/%=%))
	rm -f $(addprefix $(DESTDIR)$(BINDIR)/,$(TOOLS))
	rm -f $(addprefix $(DESTDIR)$(MANDIR)/,$(MAN_FILES))
	-rmdir $(DESTDIR)$(INCLUDEDIR)/$(NAME) 2>/dev/null || :

clean:                                       ## removes the build directory
	rm -rf $(B)
help:                                        ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t18
	@echo "Variables: V=1 B=dir T ARGS SEED ROUNDS WERROR=-Werror CC CFLAGS CPPFLAGS LDFLAGS"
	@echo "           FUZZ_SECONDS FUZZ_ARGS FUZZ_CC ARM64=aarch64-linux-gnu- QEMU=qemu-aarch64"
	@echo "           PREFIX LIBDIR INCLUDEDIR BINDIR MANDIR DESTDIR AWK"

-include $(wildcard $(B)/*/*.d $(B)/tests/*/*.d)
