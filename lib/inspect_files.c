/* SPDX-License-Identifier: Apache-2.0 */
/* The files that groups have, or left behind. */
#include "inspect_priv.h"

#include "err.h"
#include "util.h"

struct list {
	const char *dir;
	void (*fn)(void *arg, const char *path);
	void *arg;
	int count;
};

static void list_one(void *arg, const char *file)
{
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH];
	enum kvr_shm_kind kind;
	struct list *l = arg;
	uint64_t epoch;

	if (kvr_shm_parse(file, name, sizeof name, &kind, &epoch) ||
	    (kind != KVR_SHM_SEGMENT && kind != KVR_SHM_RETIRED) ||
	    kvr_shm_path(path, sizeof path, l->dir, name, kind, epoch))
		return;
	l->fn(l->arg, path);
	l->count++;
}

int kvr_inspect_list(const char *dir, void (*fn)(void *arg, const char *path), void *arg)
{
	struct list l = { .dir = dir, .fn = fn, .arg = arg };
	int err = kvr_shm_list(dir, list_one, &l);

	return err < 0 ? err : l.count;
}

struct files {
	const char *dir;
	void (*fn)(void *arg, const struct kvr_inspect_file *file);
	void *arg;
	int count;
};

static void files_one(void *arg, const char *file)
{
	static const uint32_t kinds[] = { [KVR_SHM_SEGMENT] = KVR_FILE_SEGMENT,
					  [KVR_SHM_POOL] = KVR_FILE_POOL,
					  [KVR_SHM_LOCK] = KVR_FILE_LOCK,
					  [KVR_SHM_RETIRED] = KVR_FILE_RETIRED };
	char name[KVR_NAME_MAX], path[KVR_SHM_PATH];
	struct kvr_inspect_file f = { .name = name, .path = path };
	enum kvr_shm_kind kind;
	struct files *l = arg;

	if (kvr_shm_parse(file, name, sizeof name, &kind, &f.epoch) ||
	    kvr_shm_path(path, sizeof path, l->dir, name, kind, f.epoch))
		return;
	f.kind = kinds[kind];
	l->fn(l->arg, &f);
	l->count++;
}

int kvr_inspect_files(const char *dir, void (*fn)(void *arg, const struct kvr_inspect_file *file),
		      void *arg)
{
	struct files l = { .dir = dir, .fn = fn, .arg = arg };
	int err = kvr_shm_list(dir, files_one, &l);

	return err < 0 ? err : l.count;
}
