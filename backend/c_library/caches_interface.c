/* -- the functions of the header about KV caches */

int64_t model_cache_length(const model_context *context) { return context ? context->graph_0.caches.length : 0; }

int model_truncate_caches(model_context *context, int64_t length) {
  if (!context) return fail(MODEL_INVALID_ARGUMENT, "`context` is NULL");
  if (atomic_exchange(&context->run.busy, 1)) return fail(MODEL_BUSY, "another thread is running this context");
  struct caches *caches = &context->graph_0.caches;
  int status = MODEL_OK;
  if (length < 0 || length > caches->length)
    status = fail(MODEL_INVALID_ARGUMENT, "caches of %" PRId64 " rows can't be truncated to %" PRId64, caches->length,
                  length);
  else
    caches->length = length;
  atomic_store(&context->run.busy, 0);
  return status;
}
