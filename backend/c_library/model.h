/* @name@.h, written by relayc: the model "@title@" as a C library.
@facts@
 *
 * Link with lib@name@.so or lib@name@.a (and -lm -pthread). Every function but those that return text or a description
 * returns MODEL_OK, or another status whose details model_last_error() tells.
 *
 * A context runs one call at a time. For calls at the same time, model_clone() it: clones share the weights. All other
 * functions may be called at any time from any thread. Contexts of one process share the threads of one pool; work that
 * finds the pool busy runs in its caller alone.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Inputs, as positions in the array `inputs`:
@inputs@
 */
enum { @input_names@ };

/* Outputs, as positions in the array `outputs`:
@outputs@
 */
enum { @output_names@ };

enum { MODEL_MAX_RANK = @max_rank@ };

typedef enum model_status {
  MODEL_OK = 0,
  MODEL_INVALID_ARGUMENT = 1, /* a null pointer, or memory of the wrong size */
  MODEL_SIZE_MISMATCH = 2,    /* sizes that contradict each other or the model */
  MODEL_BUFFER_TOO_SMALL = 3, /* `shape` of the output tells what it needs */
  MODEL_OUT_OF_MEMORY = 4,
  MODEL_UNSUPPORTED_CPU = 5,  /* this processor lacks instructions that the code uses */
  MODEL_WEIGHTS_ERROR = 6,    /* the file of weights can't be read, or is another model's */
  MODEL_BUSY = 7,             /* another thread is using the context */
  MODEL_UNSUPPORTED = 8       /* the model can't do this outside of relayc */
} model_status;

/* An input or output: contiguous elements in row-major order. The caller sets, before a run,
 *   of inputs: `data`, which is only read; `nbytes`, the bytes there; `shape`, as many sizes as the input has dimensions;
 *   of outputs: `data` and `nbytes`, the caller's memory and its size; or `data` NULL, for memory of the context.
 * A run sets `shape` of outputs, and `data` and `nbytes` of those in memory of the context, which is valid until the next
 * run with it, and until it is destroyed. Memory that is aligned to its elements is used in place, other is copied.
 * Outputs may not overlap inputs. */
typedef struct model_tensor {
  void *data;
  size_t nbytes;
  int64_t shape[MODEL_MAX_RANK];
} model_tensor;

/* What an input or output is. Dimensions that inputs or values decide are -1. `item_bytes` is the size of an element. */
typedef struct model_tensor_info {
  const char *name;
  const char *dtype;
  int32_t item_bytes;
  int32_t rank;
  int64_t shape[MODEL_MAX_RANK];
} model_tensor_info;

/* Everything that a run changes: memory of intermediate values and a number of threads. */
typedef struct model_context model_context;

/* Makes a context, to be destroyed by model_destroy. `weights` is @weights_argument@. */
int model_create(const char *weights, model_context **context);

/* Makes another context of as many threads, which shares the weights. */
int model_clone(const model_context *context, model_context **clone);

/* Frees a context, unless it is NULL; none of its calls may be in progress. */
void model_destroy(model_context *context);

/* Sets the greatest number of threads of later runs, the caller's included; 0, the default: as many as the process may
 * use. */
int model_set_num_threads(model_context *context, int32_t num_threads);

/* Sets `shape` and `nbytes` of the outputs that inputs of these shapes give; nothing else of either is used. Where only
 * a run can tell a size, it is -1 and `nbytes` 0. */
int model_output_shapes(const model_tensor *inputs, model_tensor *outputs);

@caches@/* Runs the model on MODEL_INPUT_COUNT inputs for MODEL_OUTPUT_COUNT outputs. */
int model_run(model_context *context, const model_tensor *inputs, model_tensor *outputs);

/* The description of an input or output; NULL for a position that there is not. */
const model_tensor_info *model_input_info(int32_t position);
const model_tensor_info *model_output_info(int32_t position);

/* A status in words; what went wrong in the last call of this thread that failed ("" if none did). */
const char *model_status_text(int status);
const char *model_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
