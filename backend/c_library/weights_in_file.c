/* -- weights, which lie in a file: 16 bytes that name its format, the SHA-256 of the weights, and behind 64 bytes they */

static const unsigned char weights_digest[] = {@digest@};

static int map_weights(struct weights *weights, int file, const char *path) {
  struct stat found;
  const int64_t expected = INT64_C(@nbytes@) + ALIGNMENT;
  if (fstat(file, &found)) return fail(MODEL_WEIGHTS_ERROR, "%s can't be read: %s", path, strerror(errno));
  if (found.st_size != expected)
    return fail(MODEL_WEIGHTS_ERROR, "%s has %" PRId64 " bytes; expected the %" PRId64 " of this model's weights", path,
                (int64_t)found.st_size, expected);
  char *start = mmap(NULL, (size_t)expected, PROT_READ, MAP_PRIVATE, file, 0);
  if (start == MAP_FAILED) return fail(MODEL_WEIGHTS_ERROR, "%s can't be mapped: %s", path, strerror(errno));
  weights->mapped = start;
  weights->mapped_bytes = (size_t)expected;
  weights->start = start + ALIGNMENT;
  if (memcmp(start, "relayc weights 1", 16) || memcmp(start + 16, weights_digest, sizeof weights_digest))
    return fail(MODEL_WEIGHTS_ERROR, "%s has the weights of another model", path);
  return MODEL_OK;
}

static int open_weights(struct weights *weights, const char *path) {
  if (!path) return fail(MODEL_INVALID_ARGUMENT, "`weights` is NULL; expected the path of the file of weights");
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail(MODEL_WEIGHTS_ERROR, "%s can't be opened: %s", path, strerror(errno));
  int status = map_weights(weights, file, path);
  close(file);
  return status;
}
