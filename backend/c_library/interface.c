/* -- the functions of the header */

static int has_cpu_quota(long long *cpus) {
  char text[64] = "";
  FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r");
  if (!file) return 0;
  size_t length = fread(text, 1, sizeof text - 1, file);
  long long quota = 0, period = 0;
  fclose(file);
  text[length] = 0;
  if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0) return 0;
  *cpus = quota / period;
  return 1;
}

/* The processors that the process may keep busy: those of its affinity, within the quota of its control group. */
static int32_t available_cpus(void) {
  cpu_set_t set;
  long long cpus = sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set), quota;
  if (has_cpu_quota(&quota) && quota < cpus) cpus = quota;
  return cpus < 1 ? 1 : (int32_t)cpus;
}

static void drop_weights(struct weights *weights) {
  if (atomic_fetch_sub(&weights->users, 1) != 1) return;
  if (weights->mapped) munmap(weights->mapped, weights->mapped_bytes);
  free(weights);
}

static void forget_workers_once(void) { pthread_atfork(NULL, NULL, relayc_forget_workers); }

static int create(struct weights *weights, int32_t num_threads, model_context **made) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  model_context *context = calloc(1, sizeof *context);
  if (!context) return fail(MODEL_OUT_OF_MEMORY, "can't allocate %zu bytes", sizeof *context);
  pthread_once(&once, forget_workers_once);
  context->run.weights = weights;
  atomic_fetch_add(&weights->users, 1);
  struct call_context *call = &context->run.call;
  call->parallel = relayc_region;
  call->alloc_workspace = relayc_alloc_workspace;
  call->free_workspace = relayc_free_workspace;
  call->call_packed = refuse_packed;
  /* The first half of the streams has a seed and begins at 0, the second is another one in every context. */
  int status = getentropy(call->stream_draws + RANDOM_STREAMS, sizeof call->stream_draws / 2)
                   ? fail(MODEL_OUT_OF_MEMORY, "the system gives no random numbers: %s", strerror(errno))
                   : begin(context);
  if (status == MODEL_OK) status = model_set_num_threads(context, num_threads);
  if (status == MODEL_OK)
    *made = context;
  else
    model_destroy(context);
  return status;
}

int model_create(const char *path, model_context **context) {
  if (!context) return fail(MODEL_INVALID_ARGUMENT, "`context` is NULL; expected where to store it");
  *context = NULL;
  TRY(check_processor());
  struct weights *weights = calloc(1, sizeof *weights);
  if (!weights) return fail(MODEL_OUT_OF_MEMORY, "can't allocate %zu bytes", sizeof *weights);
  atomic_init(&weights->users, 1);
  int status = open_weights(weights, path);
  if (status == MODEL_OK) status = create(weights, 0, context);
  drop_weights(weights);
  return status;
}

int model_clone(const model_context *context, model_context **clone) {
  if (!context || !clone) return fail(MODEL_INVALID_ARGUMENT, "`%s` is NULL", context ? "clone" : "context");
  *clone = NULL;
  return create(context->run.weights, context->run.requested_threads, clone);
}

void model_destroy(model_context *context) {
  if (!context) return;
  for (int32_t i = 0; i < MODEL_INPUT_COUNT; ++i) release(&context->run.inputs[i].own);
  for (int32_t i = 0; i < MODEL_OUTPUT_COUNT; ++i) release(&context->run.outputs[i].own);
  end(context);
  drop_weights(context->run.weights);
  free(context);
}

int model_set_num_threads(model_context *context, int32_t num_threads) {
  if (!context) return fail(MODEL_INVALID_ARGUMENT, "`context` is NULL");
  if (num_threads < 0) return fail(MODEL_INVALID_ARGUMENT, "%d threads; expected 1 or more, or 0", (int)num_threads);
  context->run.requested_threads = num_threads;
  context->run.call.num_threads = num_threads ? num_threads : available_cpus();
  return MODEL_OK;
}

static int check_arrays(const model_tensor *inputs, const model_tensor *outputs) {
  if (!inputs && MODEL_INPUT_COUNT) return fail(MODEL_INVALID_ARGUMENT, "`inputs` is NULL");
  if (!outputs && MODEL_OUTPUT_COUNT) return fail(MODEL_INVALID_ARGUMENT, "`outputs` is NULL");
  return MODEL_OK;
}

int model_output_shapes(const model_tensor *inputs, model_tensor *outputs) {
  TRY(check_arrays(inputs, outputs));
  TRY(find_shapes(inputs, outputs));
  for (int32_t i = 0; i < MODEL_OUTPUT_COUNT; ++i) {
    const model_tensor_info *info = &output_infos[i];
    int is_known = 1;
    for (int32_t axis = 0; axis < info->rank; ++axis) is_known = is_known && outputs[i].shape[axis] != -1;
    outputs[i].nbytes = 0;
    if (is_known) TRY(count_bytes(outputs[i].shape, info->rank, info->item_bytes, &outputs[i].nbytes));
  }
  return MODEL_OK;
}

int model_run(model_context *context, const model_tensor *inputs, model_tensor *outputs) {
  if (!context) return fail(MODEL_INVALID_ARGUMENT, "`context` is NULL");
  TRY(check_arrays(inputs, outputs));
  if (atomic_exchange(&context->run.busy, 1)) return fail(MODEL_BUSY, "another thread is running this context; clone it");
  context->run.packed_name = NULL;
  int status = run_model(context, inputs, outputs);
  atomic_store(&context->run.busy, 0);
  return status;
}

const model_tensor_info *model_input_info(int32_t position) {
  return position >= 0 && position < MODEL_INPUT_COUNT ? &input_infos[position] : NULL;
}

const model_tensor_info *model_output_info(int32_t position) {
  return position >= 0 && position < MODEL_OUTPUT_COUNT ? &output_infos[position] : NULL;
}

const char *model_status_text(int status) {
  static const char *const texts[] = {
      "done", "invalid argument", "sizes that don't fit", "buffer too small", "out of memory",
      "this processor lacks instructions", "weights can't be read", "context in use", "not supported in a C library"};
  return status >= 0 && status < (int)(sizeof texts / sizeof *texts) ? texts[status] : "unknown status";
}

const char *model_last_error(void) { return error_text; }
