/* The model's KV caches are in the context: a run reads the rows that earlier runs have appended, and appends those of
 * its inputs. Sizes of inputs may depend on their number, such as that of an attention mask. */

/* The number of rows in the caches of a context; 0 at first, and in a clone. */
int64_t model_cache_length(const model_context *context);

/* Keeps only the first `length` rows: 0 for a new sequence, fewer than there are to take tokens back. */
int model_truncate_caches(model_context *context, int64_t length);

