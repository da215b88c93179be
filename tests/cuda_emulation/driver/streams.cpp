// Streams, events, the capture of a stream's operations as a graph, and graphs.
#include <algorithm>

#include "state.h"

namespace driver {
namespace {

// Runs the first operation of a stream; its failure becomes the device's sticky error.
Result step(Stream& stream) {
  Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  Result result = operation();
  if (result) devices[stream.device].error = result;
  return result;
}

Result wait_for(const std::shared_ptr<Record>& record) {
  while (!record->done && record->stream && !record->stream->queue.empty())
    if (Result result = step(*record->stream)) return result;
  return SUCCESS;
}

Operation mark(std::shared_ptr<Record> record) {
  return [record]() -> Result {
    record->done = true;
    record->time = std::chrono::steady_clock::now();
    return SUCCESS;
  };
}

}  // namespace

Stream* stream_of(void* handle) {
  auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number <= 2) return &context->null_stream;  // the null, legacy and per-thread default streams
  for (Device& device : devices)
    if (device.streams.count(static_cast<Stream*>(handle))) return static_cast<Stream*>(handle);
  context->error = ILLEGAL_ADDRESS;  // a real driver follows the pointer, and may end the process
  context->message = "a stream that is gone";
  return nullptr;
}

// The null stream runs immediately, after all pending work of blocking streams.
Result submit(void* handle, Operation operation) {
  Stream* stream = stream_of(handle);
  if (!stream) return INVALID_HANDLE;
  if (stream->capture) {
    stream->capture->operations.push_back(std::move(operation));
    return SUCCESS;
  }
  stream->queue.push_back(std::move(operation));
  if (stream != &devices[stream->device].null_stream) return SUCCESS;
  for (Stream* other : devices[stream->device].streams) {
    if (other->blocking && other->capture) return CAPTURE_UNSUPPORTED;
    if (other->blocking)
      if (Result result = drain(*other)) return result;
  }
  return drain(*stream);
}

Result drain(Stream& stream) {
  while (!stream.queue.empty())
    if (Result result = step(stream)) return result;
  return SUCCESS;
}

Result drain_device(Device& device) {
  for (Stream* stream : device.streams)
    if (Result result = drain(*stream)) return result;
  return drain(device.null_stream);
}

bool capturing(const Device& device) {
  return std::any_of(device.streams.begin(), device.streams.end(), [](const Stream* s) { return bool(s->capture); });
}

}  // namespace driver

using namespace driver;

#define STREAM_OR_RETURN(name, handle) \
  ENTER;                               \
  Stream* name = stream_of(handle);    \
  if (!name) return INVALID_HANDLE

enum { NON_BLOCKING = 1, DISABLE_TIMING = 2 };

DRIVER_API Result cuStreamCreateWithPriority(void** stream, unsigned flags, int) {
  ENTER;
  auto made = new Stream{context->index, !(flags & NON_BLOCKING), {}, {}};
  context->streams.insert(made);
  *stream = made;
  return SUCCESS;
}

DRIVER_API Result cuStreamCreate(void** stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

DRIVER_API Result cuStreamDestroy(void* handle) {
  STREAM_OR_RETURN(stream, handle);
  if (stream == &context->null_stream) return INVALID_HANDLE;
  Result result = drain(*stream);
  devices[stream->device].streams.erase(stream);
  delete stream;
  return result;
}

DRIVER_API Result cuStreamSynchronize(void* handle) {
  STREAM_OR_RETURN(stream, handle);
  if (stream->capture) {
    stream->capture->invalid = true;
    return CAPTURE_UNSUPPORTED;
  }
  return drain(*stream);
}

// Not ready while there is work; a query makes progress.
DRIVER_API Result cuStreamQuery(void* handle) {
  STREAM_OR_RETURN(stream, handle);
  if (stream->capture) return CAPTURE_UNSUPPORTED;
  if (stream->queue.empty()) return SUCCESS;
  if (Result result = step(*stream)) return result;
  return NOT_READY;
}

DRIVER_API Result cuStreamGetCtx(void* handle, void** result) {
  STREAM_OR_RETURN(stream, handle);
  *result = &devices[stream->device];
  return SUCCESS;
}

DRIVER_API Result cuStreamGetFlags(void* handle, unsigned* flags) {
  STREAM_OR_RETURN(stream, handle);
  *flags = stream->blocking ? 0 : NON_BLOCKING;
  return SUCCESS;
}

DRIVER_API Result cuStreamWaitEvent(void* handle, void* event, unsigned) {
  STREAM_OR_RETURN(stream, handle);
  std::shared_ptr<Record> record = static_cast<Event*>(event)->last;
  if (!record) return SUCCESS;  // never recorded: nothing to wait for
  if (record->captured) {
    std::shared_ptr<Graph> graph = record->stream->capture;
    if (!graph || (stream->capture && stream->capture != graph)) return CAPTURE_MERGE;
    stream->capture = graph;  // the order of calls is an order in which the graph may run
    return SUCCESS;
  }
  if (stream->capture) return record->done ? SUCCESS : CAPTURE_ISOLATION;
  return submit(handle, [record] { return wait_for(record); });
}

DRIVER_API Result cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  ENTER;
  return submit(stream, [=]() -> Result {
    function(data);
    return SUCCESS;
  });
}

DRIVER_API Result cuEventCreate(void** event, unsigned flags) {
  ENTER;
  *event = new Event{context->index, !(flags & DISABLE_TIMING), {}};
  return SUCCESS;
}

DRIVER_API Result cuEventDestroy(void* event) {
  ENTER;
  delete static_cast<Event*>(event);
  return SUCCESS;
}

DRIVER_API Result cuEventRecord(void* handle, void* on) {
  STREAM_OR_RETURN(stream, on);
  auto event = static_cast<Event*>(handle);
  if (event->device != stream->device) return INVALID_HANDLE;
  event->last = std::make_shared<Record>();
  event->last->stream = stream;
  event->last->captured = stream->capture != nullptr;
  return submit(on, event->last->captured ? Operation([]() -> Result { return SUCCESS; }) : mark(event->last));
}

// With the flag EXTERNAL, of a stream that is captured: the event is recorded by every launch of the graph.
DRIVER_API Result cuEventRecordWithFlags(void* handle, void* on, unsigned flags) {
  STREAM_OR_RETURN(stream, on);
  if (!(flags & 1)) return cuEventRecord(handle, on);
  if (!stream->capture) return INVALID_VALUE;
  auto event = static_cast<Event*>(handle);
  event->last = std::make_shared<Record>();
  event->last->stream = nullptr;
  return submit(on, mark(event->last));
}

DRIVER_API Result cuEventSynchronize(void* handle) {
  ENTER;
  std::shared_ptr<Record> record = static_cast<Event*>(handle)->last;
  if (!record) return SUCCESS;
  return record->captured ? CAPTURED_EVENT : wait_for(record);
}

DRIVER_API Result cuEventQuery(void* handle) {
  ENTER;
  std::shared_ptr<Record> record = static_cast<Event*>(handle)->last;
  if (!record || record->done) return SUCCESS;
  if (record->captured) return CAPTURED_EVENT;
  if (Result result = step(*record->stream)) return result;
  return NOT_READY;
}

DRIVER_API Result cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  ENTER;
  auto first = static_cast<Event*>(from), last = static_cast<Event*>(to);
  if (!first->timing || !last->timing || !first->last || !last->last) return INVALID_HANDLE;
  if (first->last->captured || last->last->captured) return INVALID_HANDLE;
  if (!first->last->done || !last->last->done) return NOT_READY;
  *milliseconds = std::chrono::duration<float, std::milli>(last->last->time - first->last->time).count();
  return SUCCESS;
}

DRIVER_API Result cuStreamBeginCapture(void* handle, int) {
  STREAM_OR_RETURN(stream, handle);
  if (stream == &context->null_stream) return CAPTURE_UNSUPPORTED;
  if (stream->capture) return ILLEGAL_STATE;
  stream->capture = std::make_shared<Graph>();
  stream->capture->origin = stream;
  return SUCCESS;
}

DRIVER_API Result cuStreamEndCapture(void* handle, void** graph) {
  STREAM_OR_RETURN(stream, handle);
  *graph = nullptr;
  std::shared_ptr<Graph> captured = stream->capture;
  if (!captured) return ILLEGAL_STATE;
  if (captured->origin != stream) return CAPTURE_UNMATCHED;
  for (Device& device : devices)
    for (Stream* other : device.streams)
      if (other->capture == captured) other->capture.reset();
  if (captured->invalid) return CAPTURE_INVALIDATED;
  *graph = new std::shared_ptr<Graph>(captured);
  return SUCCESS;
}

DRIVER_API Result cuStreamIsCapturing(void* handle, int* status) {
  STREAM_OR_RETURN(stream, handle);
  *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
  return SUCCESS;
}

DRIVER_API Result cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  ENTER;
  *executable = new std::shared_ptr<Graph>(*static_cast<std::shared_ptr<Graph>*>(graph));
  return SUCCESS;
}

DRIVER_API Result cuGraphInstantiate(void** executable, void* graph, unsigned long long flags) {
  return cuGraphInstantiateWithFlags(executable, graph, flags);
}

DRIVER_API Result cuGraphUpload(void*, void*) {
  ENTER;
  return SUCCESS;
}

DRIVER_API Result cuGraphLaunch(void* executable, void* stream) {
  ENTER;
  std::shared_ptr<Graph> graph = *static_cast<std::shared_ptr<Graph>*>(executable);
  return submit(stream, [graph]() -> Result {
    for (const Operation& operation : graph->operations)
      if (Result result = operation()) return result;
    return SUCCESS;
  });
}

DRIVER_API Result cuGraphGetNodes(void* graph, void** nodes, std::size_t* count) {
  ENTER;
  if (!nodes) *count = (*static_cast<std::shared_ptr<Graph>*>(graph))->operations.size();
  return nodes ? INVALID_VALUE : SUCCESS;
}

DRIVER_API Result cuGraphDestroy(void* graph) {
  ENTER;
  delete static_cast<std::shared_ptr<Graph>*>(graph);
  return SUCCESS;
}

DRIVER_API Result cuGraphExecDestroy(void* executable) { return cuGraphDestroy(executable); }
