/* -- weights, which lie in the library */

extern const char relayc_weights[]; /* behind 64 bytes that begin the file of weights */

static int open_weights(struct weights *weights, const char *path) {
  if (path) return fail(MODEL_INVALID_ARGUMENT, "weights=\"%s\"; expected NULL: they are in the library", path);
  weights->start = relayc_weights + ALIGNMENT;
  return MODEL_OK;
}
