/* Runs the model once. Arguments: the size of all dynamic dimensions, 1 by default, then for each input a file of its
 * elements; inputs without one are zeros. */
#include <stdio.h>
#include <stdlib.h>

#include "@name@.h"

int main(int argc, char **argv) {
  int64_t size = argc > 1 ? atoll(argv[1]) : 1;
  model_tensor inputs[MODEL_INPUT_COUNT + 1] = {{0}}, outputs[MODEL_OUTPUT_COUNT + 1] = {{0}};
  for (int i = 0; i < MODEL_INPUT_COUNT; ++i) {
    const model_tensor_info *info = model_input_info(i);
    inputs[i].nbytes = (size_t)info->item_bytes;
    for (int axis = 0; axis < info->rank; ++axis) {
      inputs[i].shape[axis] = info->shape[axis] < 0 ? size : info->shape[axis];
      inputs[i].nbytes *= (size_t)inputs[i].shape[axis];
    }
    inputs[i].data = calloc(inputs[i].nbytes + 1, 1);
    if (argc <= i + 2) continue;
    FILE *file = fopen(argv[i + 2], "rb");
    size_t got = file ? fread(inputs[i].data, 1, inputs[i].nbytes, file) : 0;
    if (!file || ferror(file)) {
      perror(argv[i + 2]);
      return 1;
    }
    fclose(file);
    if (got != inputs[i].nbytes) {
      fprintf(stderr, "%s: %zu bytes; expected %zu, the input %s\n", argv[i + 2], got, inputs[i].nbytes, info->name);
      return 1;
    }
  }
  model_context *context = NULL;
  int status = model_create(@weights@, &context);
  if (status == MODEL_OK) status = model_run(context, inputs, outputs);
  if (status != MODEL_OK) fprintf(stderr, "%s: %s\n", model_status_text(status), model_last_error());
  for (int i = 0; status == MODEL_OK && i < MODEL_OUTPUT_COUNT; ++i) {
    const model_tensor_info *info = model_output_info(i);
    printf("%s: %s[", info->name, info->dtype);
    for (int axis = 0; axis < info->rank; ++axis) printf(axis ? ", %lld" : "%lld", (long long)outputs[i].shape[axis]);
    printf("], %zu bytes\n", outputs[i].nbytes);
  }
  model_destroy(context); /* and with it the outputs, which are in its memory */
  for (int i = 0; i < MODEL_INPUT_COUNT; ++i) free(inputs[i].data);
  return status;
}
