/* The part of the library that is the same for every model: errors, memory, arithmetic of sizes, inputs and outputs. */

enum { ALIGNMENT = 64, HUGE_FROM = 4 << 20, HUGE_PAGE = 2 << 20, RANDOM_STREAMS = 64 };

#define MAX_ELEMENTS INT32_MAX /* kernels index with 32 bits */

/* Returns from the function around when `call` fails, with its status. */
#define TRY(call)                        \
  do {                                   \
    int status_ = (call);                \
    if (status_ != MODEL_OK) return status_; \
  } while (0)

#define COUNT(array) ((int32_t)(sizeof(array) / sizeof *(array)))

/* -- errors */

static _Thread_local char error_text[512];

__attribute__((format(printf, 2, 3), cold)) static int fail(int status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error_text, sizeof error_text, format, arguments);
  va_end(arguments);
  return status;
}

/* -- what compiled code is passed: the context of a call. The order of the fields is that in compiled code. */

struct call_context {
  void (*parallel)(struct call_context *, void *, void *, int32_t, int64_t);
  int32_t num_threads;
  int32_t draws;
  void *(*alloc_workspace)(struct call_context *, int64_t);
  void (*free_workspace)(struct call_context *, void *);
  int32_t (*call_packed)(struct call_context *, const char *, const int64_t *, const int32_t *, int32_t);
  _Atomic int64_t shortage;
  uint32_t stream_draws[2 * RANDOM_STREAMS];
};

extern void relayc_region(struct call_context *, void *, void *, int32_t, int64_t);
extern void *relayc_alloc_workspace(struct call_context *, int64_t);
extern void relayc_free_workspace(struct call_context *, void *);
extern void relayc_forget_workers(void);

/* -- memory */

struct memory {
  char *start;
  size_t nbytes;
};

static void release(struct memory *memory) {
  free(memory->start);
  *memory = (struct memory){0};
}

/* Makes memory at least `nbytes` large, aligned for kernels; what was in it is lost when it grows. */
static int reserve(struct memory *memory, size_t nbytes) {
  if (memory->start && memory->nbytes >= nbytes) return MODEL_OK;
  size_t grown = memory->nbytes + memory->nbytes / 4, wanted = nbytes > grown ? nbytes : grown;
  size_t alignment = wanted >= HUGE_FROM ? HUGE_PAGE : ALIGNMENT;
  void *start = NULL;
  release(memory);
  if (wanted > PTRDIFF_MAX - HUGE_PAGE || posix_memalign(&start, alignment, wanted ? wanted : 1))
    return fail(MODEL_OUT_OF_MEMORY, "can't allocate %zu bytes", wanted);
  if (wanted >= HUGE_FROM) madvise(start, wanted, MADV_HUGEPAGE); /* a hint */
  *memory = (struct memory){start, wanted};
  return MODEL_OK;
}

/* -- sizes. Arithmetic saturates: a size beyond 64 bits is one too large for any tensor, whatever follows from it. */

__attribute__((unused)) static int64_t size_add(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? (a < 0 ? INT64_MIN : INT64_MAX) : sum;
}

__attribute__((unused)) static int64_t size_sub(int64_t a, int64_t b) {
  int64_t difference;
  return __builtin_sub_overflow(a, b, &difference) ? (a < 0 ? INT64_MIN : INT64_MAX) : difference;
}

__attribute__((unused)) static int64_t size_mul(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? ((a < 0) != (b < 0) ? INT64_MIN : INT64_MAX) : product;
}

/* The quotient rounded down; 0 for division by 0, which occurs for empty tensors only. */
__attribute__((unused)) static int64_t size_div(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return size_sub(0, a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

__attribute__((unused)) static int64_t size_mod(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

__attribute__((unused)) static int64_t size_min(int64_t a, int64_t b) { return a < b ? a : b; }
__attribute__((unused)) static int64_t size_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* A shape as text, for errors. */
struct shape_text {
  char text[24 * MODEL_MAX_RANK + 3];
};

static struct shape_text text_of(const int64_t *shape, int32_t rank) {
  struct shape_text made = {"("};
  size_t end = 1;
  for (int32_t axis = 0; axis < rank && axis < MODEL_MAX_RANK; ++axis)
    end += snprintf(made.text + end, sizeof made.text - end, axis ? ", %" PRId64 : "%" PRId64, shape[axis]);
  snprintf(made.text + end, sizeof made.text - end, ")");
  return made;
}

/* Sets `nbytes` to the bytes of a tensor of this shape. */
static int count_bytes(const int64_t *shape, int32_t rank, int64_t item_bytes, size_t *nbytes) {
  int64_t count = 1, extent = 1; /* the extent leaves sizes of 0 out: strides reach that far in empty tensors, too */
  for (int32_t axis = 0; axis < rank; ++axis) {
    if (shape[axis] < 0)
      return fail(MODEL_SIZE_MISMATCH, "a tensor of shape %s; the inputs are too small for it",
                  text_of(shape, rank).text);
    count = size_mul(count, shape[axis]);
    extent = size_mul(extent, shape[axis] ? shape[axis] : 1);
  }
  if (extent > MAX_ELEMENTS)
    return fail(MODEL_SIZE_MISMATCH, "a tensor of shape %s; expected at most %d elements", text_of(shape, rank).text,
                MAX_ELEMENTS);
  *nbytes = (size_t)(count * item_bytes);
  return MODEL_OK;
}

/* -- the context */

struct weights {
  const char *start; /* of the first weight */
  void *mapped;      /* the file, NULL for weights in the library */
  size_t mapped_bytes;
  atomic_int users;
};

/* An input or output of a run: memory for what the caller passes without alignment or leaves to the context, and where
 * kernels read or write it. */
struct port {
  struct memory own;
  char *address;
  size_t nbytes;
};

static const model_tensor_info input_infos[];
static const model_tensor_info output_infos[];

struct run {
  struct call_context call; /* first: compiled code passes its address */
  struct weights *weights;
  int32_t requested_threads;
  atomic_int busy;
  const char *packed_name; /* the function that compiled code tried to call, NULL for none */
  struct port inputs[MODEL_INPUT_COUNT + 1];
  struct port outputs[MODEL_OUTPUT_COUNT + 1];
};

/* The error that compiled code met, if any. */
__attribute__((unused)) static int check_call(struct run *run) {
  int64_t shortage = atomic_exchange_explicit(&run->call.shortage, 0, memory_order_relaxed);
  if (run->packed_name)
    return fail(MODEL_UNSUPPORTED, "the model calls the function %s of a Python process", run->packed_name);
  if (shortage)
    return fail(MODEL_OUT_OF_MEMORY,
                "a kernel can't allocate %" PRId64 " bytes of workspace; fewer threads may need less", shortage);
  return MODEL_OK;
}

static int32_t refuse_packed(struct call_context *call, const char *name, const int64_t *values, const int32_t *kinds,
                             int32_t count) {
  (void)values, (void)kinds, (void)count;
  ((struct run *)(void *)call)->packed_name = name;
  return -1;
}

/* -- inputs and outputs */

/* Compares the shapes of inputs with those that a graph takes; sizes of -1 there are compared elsewhere. */
__attribute__((unused)) static int check_shapes(const model_tensor *inputs,
                                                const int64_t (*shapes)[MODEL_MAX_RANK]) {
  for (int32_t i = 0; i < MODEL_INPUT_COUNT; ++i)
    for (int32_t axis = 0; axis < input_infos[i].rank; ++axis)
      if (inputs[i].shape[axis] < 0 || (shapes[i][axis] >= 0 && inputs[i].shape[axis] != shapes[i][axis]))
        return fail(MODEL_SIZE_MISMATCH, "input \"%s\" has the shape %s; expected %s (-1: any size)",
                    input_infos[i].name, text_of(inputs[i].shape, input_infos[i].rank).text,
                    text_of(shapes[i], input_infos[i].rank).text);
  return MODEL_OK;
}

/* Compares a size of an input with that which others decide. */
__attribute__((unused)) static int check_size(const model_tensor *inputs, int32_t input, int32_t axis,
                                              int64_t expected, const char *why) {
  int64_t found = inputs[input].shape[axis];
  if (found == expected) return MODEL_OK;
  return fail(MODEL_SIZE_MISMATCH, "input \"%s\" has the size %" PRId64 " along axis %d; expected %s, which is %" PRId64,
              input_infos[input].name, found, (int)axis, why, expected);
}

/* Checks the memory of the inputs, and finds or makes what kernels read. */
static int take_inputs(struct run *run, const model_tensor *inputs) {
  for (int32_t i = 0; i < MODEL_INPUT_COUNT; ++i) {
    const model_tensor_info *info = &input_infos[i];
    struct port *port = &run->inputs[i];
    TRY(count_bytes(inputs[i].shape, info->rank, info->item_bytes, &port->nbytes));
    if (inputs[i].nbytes != port->nbytes)
      return fail(MODEL_INVALID_ARGUMENT, "input \"%s\" has %zu bytes; expected %zu for %s of shape %s", info->name,
                  inputs[i].nbytes, port->nbytes, info->dtype, text_of(inputs[i].shape, info->rank).text);
    if (!inputs[i].data && port->nbytes)
      return fail(MODEL_INVALID_ARGUMENT, "input \"%s\" has no data; expected %zu bytes", info->name, port->nbytes);
    port->address = inputs[i].data;
    if (!port->address || (uintptr_t)port->address % (size_t)info->item_bytes) {
      TRY(reserve(&port->own, port->nbytes));
      if (port->nbytes) memcpy(port->own.start, inputs[i].data, port->nbytes);
      port->address = port->own.start;
    }
  }
  return MODEL_OK;
}

static int check_overlap(const model_tensor *inputs, const char *output, const char *start, size_t nbytes) {
  for (int32_t i = 0; i < MODEL_INPUT_COUNT; ++i) {
    const char *begin = inputs[i].data;
    if ((uintptr_t)begin < (uintptr_t)start + nbytes && (uintptr_t)start < (uintptr_t)begin + inputs[i].nbytes)
      return fail(MODEL_INVALID_ARGUMENT, "the memory of output \"%s\" overlaps that of input \"%s\"", output,
                  input_infos[i].name);
  }
  return MODEL_OK;
}

/* Sets the shape of an output, checks its memory, and sets `address` to where kernels write it. */
static int place_output(struct run *run, const model_tensor *inputs, model_tensor *outputs, int32_t position,
                        const int64_t *shape, void **address) {
  const model_tensor_info *info = &output_infos[position];
  struct port *port = &run->outputs[position];
  model_tensor *output = &outputs[position];
  memcpy(output->shape, shape, sizeof(int64_t) * (size_t)info->rank);
  TRY(count_bytes(shape, info->rank, info->item_bytes, &port->nbytes));
  int is_own = !output->data || output->data == port->own.start;
  if (is_own)
    output->data = NULL; /* until there is memory */
  else if (output->nbytes < port->nbytes)
    return fail(MODEL_BUFFER_TOO_SMALL, "output \"%s\" has memory for %zu bytes; expected %zu for %s of shape %s",
                info->name, output->nbytes, port->nbytes, info->dtype, text_of(shape, info->rank).text);
  else
    TRY(check_overlap(inputs, info->name, output->data, port->nbytes));
  port->address = output->data;
  if (is_own || (uintptr_t)port->address % (size_t)info->item_bytes) {
    TRY(reserve(&port->own, port->nbytes));
    port->address = port->own.start;
  }
  if (is_own) {
    output->data = port->address;
    output->nbytes = port->nbytes;
  }
  *address = port->address;
  return MODEL_OK;
}

/* Copies an output that kernels wrote elsewhere to where the caller expects it. */
static void deliver(struct run *run, model_tensor *outputs, int32_t position, const void *address) {
  size_t nbytes = run->outputs[position].nbytes;
  if (outputs[position].data != address && nbytes) memcpy(outputs[position].data, address, nbytes);
}

/* -- memory of graphs with sizes that are known when they run */

/* A tensor and the number of the slot that it lies in. */
struct in_slot {
  int32_t tensor, slot;
};

/* Lays out slots one after another, and sets the addresses of the tensors in them. `slots` has the bytes of each. */
__attribute__((unused)) static int lay_out(struct memory *arena, size_t *slots, int32_t slot_count, void **tensors,
                                           const struct in_slot *placed, int32_t placed_count) {
  size_t total = 0;
  for (int32_t k = 0; k < slot_count; ++k) {
    size_t nbytes = (slots[k] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    slots[k] = total;
    total += nbytes;
  }
  TRY(reserve(arena, total));
  for (int32_t k = 0; k < placed_count; ++k) tensors[placed[k].tensor] = arena->start + slots[placed[k].slot];
  return MODEL_OK;
}

/* Makes a slot as large as a tensor of `nbytes` needs. */
__attribute__((unused)) static void widen(size_t *slot, size_t nbytes) {
  if (*slot < nbytes) *slot = nbytes;
}

/* Sets the size `size` to a value that the model computed. */
__attribute__((unused)) static int bind_size(int64_t *size, int64_t value, const char *source) {
  if (value < 0 || value > MAX_ELEMENTS)
    return fail(MODEL_SIZE_MISMATCH, "%s computes the size %" PRId64 "; expected 0 to %d", source, value, MAX_ELEMENTS);
  *size = value;
  return MODEL_OK;
}

__attribute__((unused)) static int check_equal(int64_t left, int64_t right, const char *source) {
  if (left == right) return MODEL_OK;
  return fail(MODEL_SIZE_MISMATCH, "%s needs two equal sizes and gets %" PRId64 " and %" PRId64, source, left, right);
}

/* A weight: the number of its tensor, and where it lies among the weights. */
struct placed_weight {
  int32_t tensor;
  int64_t offset;
};

__attribute__((unused)) static void place_weights(void **tensors, const char *weights,
                                                  const struct placed_weight *placed, int32_t count) {
  for (int32_t k = 0; k < count; ++k) tensors[placed[k].tensor] = (char *)(uintptr_t)weights + placed[k].offset;
}

/* -- loops that are compiled functions. Their frames are tables of words: addresses, sizes, frames inside. */

/* Places a tensor at `*end` of memory that is not allocated yet; the word becomes its offset there. */
__attribute__((unused)) static void place_word(int64_t *word, size_t *end, size_t nbytes) {
  *word = (int64_t)*end;
  *end += (nbytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

__attribute__((unused)) static void place_slots(int64_t *frame, size_t *slots, int32_t slot_count,
                                                const struct in_slot *placed, int32_t placed_count, size_t *end) {
  for (int32_t k = 0; k < slot_count; ++k) {
    int64_t offset;
    place_word(&offset, end, slots[k]);
    slots[k] = (size_t)offset;
  }
  for (int32_t k = 0; k < placed_count; ++k) frame[placed[k].tensor] = (int64_t)slots[placed[k].slot];
}

/* Makes addresses of the offsets in these words of a frame. */
__attribute__((unused)) static void locate(int64_t *frame, const int32_t *words, int32_t count,
                                           const struct memory *arena) {
  for (int32_t k = 0; k < count; ++k) frame[words[k]] += (int64_t)(intptr_t)arena->start;
}

/* A stacked output of a loop: a result of each iteration, one after another; compiled code keeps the end in `word`. */
struct stack {
  struct memory *memory;
  size_t nbytes; /* of one result */
  int64_t *word;
  int64_t room; /* results that fit */
};

/* Makes room for so many results behind the `filled` ones that there are. */
__attribute__((unused)) static int make_room(struct stack *stack, int64_t filled, int64_t room) {
  if (room <= stack->room && filled) return MODEL_OK;
  struct memory larger = {0};
  int64_t nbytes = size_mul(room, (int64_t)stack->nbytes);
  if (stack->memory->start && (int64_t)stack->memory->nbytes >= nbytes)
    larger = *stack->memory;
  else
    TRY(reserve(&larger, (size_t)nbytes));
  if (larger.start != stack->memory->start) {
    if (filled) memcpy(larger.start, stack->memory->start, (size_t)filled * stack->nbytes);
    release(stack->memory);
    *stack->memory = larger;
  }
  stack->room = room;
  *stack->word = (int64_t)(intptr_t)(larger.start + (size_t)filled * stack->nbytes);
  return MODEL_OK;
}

__attribute__((unused)) static int64_t first_room(const struct stack *stack, int64_t trips) {
  int64_t room = (1 << 20) / (int64_t)(stack->nbytes ? stack->nbytes : 1);
  return size_min(size_max(room, 1), trips);
}

/* A loop with a compiled function: a call of it runs iterations until their number reaches the limit, or, where sizes
 * grow, until one is larger than its capacity. The words of the frame hold the address of that number, and the limit. */
struct loop {
  void (*entry)(struct call_context *, int64_t *);
  int64_t *frame;
  int32_t iteration_word, limit_word;
  int64_t trips, turns; /* compiled code counts the turns down, and returns where none are left */
  struct stack *stacks;
  int32_t stack_count;
  int (*grow)(struct run *, void *, struct loop *); /* NULL where no size grows */
};

/* Runs a loop whose frame is laid out, at most `trips` > 0 times; `graph` is the struct of the graph around. */
__attribute__((unused)) static int run_loop(struct run *run, void *graph, struct loop *loop) {
  int64_t limit = loop->trips;
  for (int32_t k = 0; k < loop->stack_count; ++k) {
    TRY(make_room(&loop->stacks[k], 0, first_room(&loop->stacks[k], loop->trips)));
    limit = size_min(limit, loop->stacks[k].room);
  }
  *(int64_t *)(intptr_t)loop->frame[loop->iteration_word] = 0;
  for (;;) {
    int64_t *at_limit = &loop->frame[loop->limit_word];
    *at_limit = limit;
    loop->turns = INT64_C(1) << 62;
    loop->entry(&run->call, loop->frame);
    TRY(check_call(run));
    int has_ended = *(int64_t *)(intptr_t)loop->frame[loop->iteration_word] >= *at_limit;
    if (has_ended && (*at_limit < limit || limit == loop->trips)) return MODEL_OK; /* by its condition, or all trips */
    if (loop->grow) TRY(loop->grow(run, graph, loop));
    if (has_ended) {
      int64_t room = size_mul(limit, 2);
      for (int32_t k = 0; k < loop->stack_count; ++k) TRY(make_room(&loop->stacks[k], limit, room));
      limit = size_min(loop->trips, room);
    }
  }
}

/* -- loops whose iterations are run one by one */

/* A carried value: in `held`, or what the loop began with. The next one is copied to `spare`. */
struct state {
  void *address;
  struct memory held, spare;
};

__attribute__((unused)) static int carry(struct state *state, const void *result, size_t nbytes) {
  if (result == state->address) return MODEL_OK;
  TRY(reserve(&state->spare, nbytes));
  if (nbytes) memcpy(state->spare.start, result, nbytes);
  struct memory filled = state->spare;
  state->spare = state->held;
  state->held = filled;
  state->address = filled.start;
  return MODEL_OK;
}

/* Copies a result behind the `filled` ones that there are; at most `trips` are expected. */
__attribute__((unused)) static int push(struct stack *stack, const void *result, int64_t filled, int64_t trips) {
  if (filled == stack->room)
    TRY(make_room(stack, filled, filled ? size_min(size_mul(filled, 2), trips) : first_room(stack, trips)));
  if (stack->nbytes) memcpy((void *)(intptr_t)*stack->word, result, stack->nbytes);
  *stack->word += (int64_t)stack->nbytes;
  return MODEL_OK;
}

/* Compares the shapes of two results of `source` that are to be stacked. */
__attribute__((unused)) static int check_stacked(const int64_t *left, const int64_t *right, int32_t rank,
                                                 const char *source) {
  for (int32_t axis = 0; axis < rank; ++axis)
    if (left[axis] != right[axis])
      return fail(MODEL_SIZE_MISMATCH, "%s: iterations give values of sizes %" PRId64 " and %" PRId64
                  " along axis %d to be stacked; expected one", source, left[axis], right[axis], (int)axis);
  return MODEL_OK;
}
