/* -- KV caches: inputs that the context keeps from run to run, each with `length` rows along one axis, and room for
 * more. Runs append to them in place. */

struct cache_info {
  const char *name;
  int32_t rank, axis;
  int64_t item_bytes;
};

struct cache {
  struct memory memory;
  int64_t shape[MODEL_MAX_RANK];
};

struct caches {
  int64_t length, room, added; /* rows kept; rows that fit; rows that the run in progress appends */
  struct cache each[CACHE_COUNT];
};

static const struct cache_info cache_infos[CACHE_COUNT] = {
@infos@
};

/* The product of a cache's sizes from axis `first` to axis `last`, exclusively. */
static int64_t cache_items(const struct cache *cache, int32_t first, int32_t last) {
  int64_t items = 1;
  for (int32_t axis = first; axis < last; ++axis) items *= cache->shape[axis];
  return items;
}

/* Copies the first `length` rows of a cache to memory for more of them. */
static void move_rows(const struct cache_info *info, const struct cache *from, const struct cache *to, int64_t length) {
  int64_t blocks = cache_items(to, 0, info->axis), row = info->item_bytes * cache_items(to, info->axis + 1, info->rank);
  for (int64_t k = 0; k < blocks; ++k)
    memcpy(to->memory.start + k * to->shape[info->axis] * row, from->memory.start + k * from->shape[info->axis] * row,
           (size_t)(length * row));
}

/* Writes zeros where a run appends rows. It may append fewer to one entry of a batch than to another: what lies behind
 * the shorter one is read, and masked, which makes nothing of any number, but not of NaN. */
static void clear_rows(const struct cache_info *info, const struct cache *cache, int64_t length, int64_t added) {
  int64_t blocks = cache_items(cache, 0, info->axis), room = cache->shape[info->axis];
  int64_t row = info->item_bytes * cache_items(cache, info->axis + 1, info->rank);
  for (int64_t k = 0; k < blocks; ++k)
    memset(cache->memory.start + (k * room + length) * row, 0, (size_t)(added * row));
}

/* Gives a cache this shape, and keeps its rows. */
static int reshape_cache(const struct cache_info *info, struct cache *cache, const int64_t *shape, int64_t length) {
  struct cache made = {{0}};
  size_t nbytes;
  memcpy(made.shape, shape, sizeof made.shape);
  if (cache->memory.start && !memcmp(cache->shape, made.shape, sizeof made.shape)) return MODEL_OK;
  for (int32_t axis = 0; length && axis < info->rank; ++axis)
    if (axis != info->axis && shape[axis] != cache->shape[axis])
      return fail(MODEL_SIZE_MISMATCH, "cache \"%s\" has %" PRId64 " rows in a shape %s, and the inputs require %s; "
                  "truncate the caches to forget them", info->name, length, text_of(cache->shape, info->rank).text,
                  text_of(shape, info->rank).text);
  TRY(count_bytes(shape, info->rank, info->item_bytes, &nbytes));
  TRY(reserve(&made.memory, nbytes));
  if (length) move_rows(info, cache, &made, length);
  release(&cache->memory);
  *cache = made;
  return MODEL_OK;
}

/* Makes room for the rows that a run appends, `added` of which each cache gets. `shapes` are those of the caches, where
 * the size along their axes is left out. */
static int lay_out_caches(struct caches *caches, int64_t (*shapes)[MODEL_MAX_RANK], const int64_t *added) {
  for (int32_t k = 1; k < CACHE_COUNT; ++k)
    TRY(check_equal(added[0], added[k], "the KV caches of the model, which get one number of rows"));
  int64_t needed = size_add(caches->length, added[0]), room = caches->room;
  if (needed > room) room = size_add(needed, needed / 2);
  for (int32_t k = 0; k < CACHE_COUNT; ++k) {
    shapes[k][cache_infos[k].axis] = room;
    TRY(reshape_cache(&cache_infos[k], &caches->each[k], shapes[k], caches->length));
    clear_rows(&cache_infos[k], &caches->each[k], caches->length, added[0]);
  }
  caches->room = room;
  caches->added = added[0];
  return MODEL_OK;
}
