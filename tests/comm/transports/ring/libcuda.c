/* The calls of the CUDA driver that the copy engine uses, on host memory: a libcuda.so.1 for the real cuda-bindings.

   A hardware queue is a thread with a list of operations, which it does in the order in which they were issued. A
   stream has one of `hardware_queues` queues, in turn; streams that share one hold up each other. A queue that is full
   blocks whoever issues to it, inside the lock that every call but a question takes. GPU memory is a memfd, so that
   processes share it by descriptors; it is never zero, and unmapped memory is out of reach. Words may be waited for and
   written in memory that the driver knows: mapped as its own, or registered host memory.

   The functions that begin with `shim` are for tests: how many queues, which version, what fails and when, what was
   called. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500,
    NOT_READY = 600, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURED_EVENT = 907
};
enum { GRAIN = 1 << 16, QUEUES = 64, MOST_ROOM = 4096, RANGES = 4096 };
typedef int CUresult;
typedef uint64_t CUdeviceptr, Handle;
typedef struct { int type, id; } Location;
typedef struct { int type, handle_types; Location location; } Prop;
typedef struct { Location location; int flags; } Access;
typedef struct { int order; Location source, target; unsigned flags; } Attributes;

/* What can be called, and the version of CUDA that brought it. Two of one name differ in what they take. */
#define CALLS(X) \
    X(cuInit, cuInit, 2000) X(cuDriverGetVersion, cuDriverGetVersion, 2000) X(cuDeviceGet, cuDeviceGet, 2000) \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 2000) \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 2000) \
    X(cuCtxPushCurrent, cuCtxPushCurrent, 2000) X(cuCtxPopCurrent, cuCtxPopCurrent, 2000) \
    X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 2000) X(cuMemCreate, cuMemCreate, 2000) \
    X(cuMemRelease, cuMemRelease, 2000) X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 2000) \
    X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 2000) \
    X(cuMemAddressReserve, cuMemAddressReserve, 2000) X(cuMemAddressFree, cuMemAddressFree, 2000) \
    X(cuMemMap, cuMemMap, 2000) X(cuMemUnmap, cuMemUnmap, 2000) X(cuMemSetAccess, cuMemSetAccess, 2000) \
    X(cuMemHostRegister, cuMemHostRegister, 2000) X(cuMemHostUnregister, cuMemHostUnregister, 2000) \
    X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer, 2000) \
    X(cuStreamCreate, cuStreamCreate, 2000) X(cuStreamDestroy, cuStreamDestroy, 2000) \
    X(cuStreamSynchronize, cuStreamSynchronize, 2000) X(cuStreamWaitEvent, cuStreamWaitEvent, 2000) \
    X(cuStreamWaitValue32, cuStreamWaitValue32, 2000) X(cuStreamWriteValue32, cuStreamWriteValue32, 2000) \
    X(cuStreamIsCapturing, cuStreamIsCapturing, 2000) X(cuStreamBeginCapture, cuStreamBeginCapture, 2000) \
    X(cuStreamEndCapture, cuStreamEndCapture, 2000) \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 2000) X(cuMemcpyAsync, cuMemcpyAsync, 2000) \
    X(cuMemcpyBatchAsync, cuMemcpyBatchAsync, 12080) X(cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2, 13000) \
    X(cuEventCreate, cuEventCreate, 2000) X(cuEventDestroy, cuEventDestroy, 2000) \
    X(cuEventRecord, cuEventRecord, 2000) X(cuEventQuery, cuEventQuery, 2000)

#define NUMBER(name, function, version) AT_##function,
enum { CALLS(NUMBER) HOW_MANY };
static struct { const char *name; atomic_int called, fails_after, code; } calls[HOW_MANY] = {
#define NAME(name, function, version) {#name},
    CALLS(NAME)
};

typedef struct Stream Stream;
typedef struct { enum { NOTHING, COPY, WRITE, WAIT, BEHIND } kind; void *to; const void *source; size_t nbytes;
                 uint32_t value; Stream *stream, *behind; uint64_t number, until; } Operation;
typedef struct { pthread_mutex_t lock; pthread_cond_t changed; Operation todo[MOST_ROOM]; uint64_t issued, done;
                 int running; } Queue;
struct Stream { Queue *queue; uint64_t issued; atomic_uint_fast64_t done; int capturing, destroyed; };
typedef struct { Stream *stream; uint64_t number; int captured; } Event;
typedef struct { uint64_t start, end; int usable; } Range;

static Queue *queues[QUEUES];
static Range mapped[RANGES], registered[RANGES];
static Stream default_stream;
static int version = 13000, hardware_queues = 32, room = 1024, next_queue, captures;
static uint64_t alias; /* added to what cuMemHostGetDevicePointer tells */
static pthread_mutex_t driver = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int contexts, capture_mode; /* mode 0: global */

/* A call that was told to fail does nothing else. */
static CUresult begin(int call) {
    atomic_fetch_add(&calls[call].called, 1);
    if (atomic_load(&calls[call].fails_after) > 0 && atomic_fetch_sub(&calls[call].fails_after, 1) == 1)
        return atomic_load(&calls[call].code);
    return SUCCESS;
}

#define BEGIN(function) do { CUresult failed = begin(AT_##function); if (failed) return failed; } while (0)
#define IN_CONTEXT(function) do { BEGIN(function); if (!contexts) return INVALID_CONTEXT; } while (0)

static void unlock(pthread_mutex_t **lock) { pthread_mutex_unlock(*lock); }
#define LOCKED(function) IN_CONTEXT(function); pthread_mutex_lock(&driver); \
    __attribute__((cleanup(unlock), unused)) pthread_mutex_t *locked = &driver

static void pause_after(int times) { /* longer and longer, at most a millisecond */
    struct timespec pause = {0, times < 20 ? 0 : times < 220 ? 20000 : 1000000};
    nanosleep(&pause, NULL);
}

/* Queues and streams */

static int has_come(const Operation *todo) {
    if (todo->kind == WAIT)
        return (int32_t)(atomic_load((_Atomic uint32_t *)todo->to) - todo->value) >= 0; /* in a circle */
    return todo->kind != BEHIND || atomic_load(&todo->behind->done) >= todo->until;
}

static void *serve(void *given) {
    Queue *queue = given;
    for (;;) {
        pthread_mutex_lock(&queue->lock);
        while (queue->done == queue->issued) pthread_cond_wait(&queue->changed, &queue->lock);
        Operation todo = queue->todo[queue->done % MOST_ROOM];
        pthread_mutex_unlock(&queue->lock);
        for (int times = 0; !has_come(&todo); times++) pause_after(times);
        if (todo.kind == COPY) memcpy(todo.to, todo.source, todo.nbytes);
        if (todo.kind == WRITE) atomic_store((_Atomic uint32_t *)todo.to, todo.value);
        atomic_store(&todo.stream->done, todo.number);
        pthread_mutex_lock(&queue->lock);
        queue->done++;
        pthread_cond_broadcast(&queue->changed);
        pthread_mutex_unlock(&queue->lock);
    }
    return NULL;
}

static Queue *queue_in_turn(void) {
    int number = next_queue++ % hardware_queues;
    if (!queues[number]) {
        queues[number] = calloc(1, sizeof(Queue));
        pthread_mutex_init(&queues[number]->lock, NULL);
        pthread_cond_init(&queues[number]->changed, NULL);
        pthread_t thread;
        pthread_create(&thread, NULL, serve, queues[number]);
        pthread_detach(thread);
    }
    return queues[number];
}

static Stream *known(Stream *stream) {
    if (stream) return stream->destroyed ? NULL : stream;
    if (!default_stream.queue) default_stream.queue = queue_in_turn();
    return &default_stream;
}

/* The driver's lock is held, also while the queue has no room. */
static CUresult issue(Stream *given, Operation todo) {
    Stream *stream = known(given);
    if (!stream) return INVALID_HANDLE;
    if (stream->capturing) return SUCCESS; /* a node of a graph that nobody launches */
    Queue *queue = stream->queue;
    pthread_mutex_lock(&queue->lock);
    while (queue->issued - queue->done >= (uint64_t)room) pthread_cond_wait(&queue->changed, &queue->lock);
    todo.stream = stream;
    todo.number = ++stream->issued;
    queue->todo[queue->issued++ % MOST_ROOM] = todo;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    return SUCCESS;
}

CUresult cuStreamCreate(Stream **stream, unsigned flags) {
    LOCKED(cuStreamCreate);
    if (flags != 1) return INVALID_VALUE; /* it would wait for the default stream */
    *stream = calloc(1, sizeof(Stream));
    (*stream)->queue = queue_in_turn();
    return SUCCESS;
}

CUresult cuStreamDestroy(Stream *stream) { /* what was issued to it is still done */
    LOCKED(cuStreamDestroy);
    if (!stream || stream->destroyed) return INVALID_HANDLE;
    stream->destroyed = 1;
    return SUCCESS;
}

CUresult cuStreamSynchronize(Stream *stream) {
    IN_CONTEXT(cuStreamSynchronize);
    if (!(stream = known(stream))) return INVALID_HANDLE;
    for (int times = 0; atomic_load(&stream->done) < stream->issued; times++) pause_after(times);
    return SUCCESS;
}

static int usable(const Range *ranges, uint64_t address) {
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].usable && ranges[i].start <= address && address + 4 <= ranges[i].end) return 1;
    return 0;
}

static int is_word(uint64_t address) {
    return address % 4 == 0 && (usable(mapped, address) || usable(registered, address));
}

CUresult cuStreamWaitValue32(Stream *stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    LOCKED(cuStreamWaitValue32);
    if (flags != 0 || !is_word(address)) return INVALID_VALUE;
    return issue(stream, (Operation){.kind = WAIT, .to = (void *)address, .value = value});
}

CUresult cuStreamWriteValue32(Stream *stream, CUdeviceptr address, uint32_t value, unsigned flags) {
    LOCKED(cuStreamWriteValue32);
    if (flags != 0 || !is_word(address)) return INVALID_VALUE; /* other flags: not ordered behind copies */
    return issue(stream, (Operation){.kind = WRITE, .to = (void *)address, .value = value});
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr source, size_t nbytes, Stream *stream) {
    LOCKED(cuMemcpyAsync);
    return issue(stream, (Operation){.kind = COPY, .to = (void *)to, .source = (void *)source, .nbytes = nbytes});
}

static CUresult batch(CUdeviceptr *to, CUdeviceptr *source, size_t *nbytes, size_t count, Attributes *attributes,
                      size_t *first, size_t kinds, Stream *stream) {
    if (!count || kinds != 1 || first[0] || attributes[0].order != 1 || attributes[0].flags != 1) return INVALID_VALUE;
    if (!stream) return INVALID_VALUE; /* the default stream takes no batches */
    CUresult result = SUCCESS;
    for (size_t i = 0; i < count && !result; i++)
        result = issue(stream, (Operation){.kind = COPY, .to = (void *)to[i], .source = (void *)source[i],
                                           .nbytes = nbytes[i]});
    return result;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *source, size_t *nbytes, size_t count, Attributes *attributes,
                            size_t *first, size_t kinds, size_t *failed, Stream *stream) {
    LOCKED(cuMemcpyBatchAsync);
    *failed = SIZE_MAX;
    return batch(to, source, nbytes, count, attributes, first, kinds, stream);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *source, size_t *nbytes, size_t count,
                               Attributes *attributes, size_t *first, size_t kinds, Stream *stream) {
    LOCKED(cuMemcpyBatchAsync_v2);
    return batch(to, source, nbytes, count, attributes, first, kinds, stream);
}

/* Events. In a graph that is being captured they stand for nodes. */

CUresult cuEventCreate(Event **event, unsigned flags) {
    LOCKED(cuEventCreate);
    if (flags != 2) return INVALID_VALUE; /* one that measures time, or can be shared */
    *event = calloc(1, sizeof(Event));
    return SUCCESS;
}

CUresult cuEventDestroy(Event *event) {
    LOCKED(cuEventDestroy);
    free(event);
    return SUCCESS;
}

CUresult cuEventRecord(Event *event, Stream *given) {
    LOCKED(cuEventRecord);
    Stream *stream = known(given);
    if (!stream) return INVALID_HANDLE;
    CUresult result = issue(given, (Operation){.kind = NOTHING});
    *event = (Event){.stream = stream, .number = stream->issued, .captured = stream->capturing};
    return result;
}

CUresult cuEventQuery(Event *event) { /* without the lock */
    IN_CONTEXT(cuEventQuery);
    if (event->captured) return CAPTURED_EVENT;
    if (captures && !capture_mode) return CAPTURE_UNSUPPORTED; /* in mode global all threads have to keep off */
    return !event->stream || atomic_load(&event->stream->done) >= event->number ? SUCCESS : NOT_READY;
}

CUresult cuStreamWaitEvent(Stream *stream, Event *event, unsigned flags) {
    LOCKED(cuStreamWaitEvent);
    if (event->captured) { /* the stream joins the capture */
        if (!known(stream)->capturing) known(stream)->capturing = 1, captures++;
        return SUCCESS;
    }
    if (!event->stream) return SUCCESS;
    return issue(stream, (Operation){.kind = BEHIND, .behind = event->stream, .until = event->number});
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    BEGIN(cuThreadExchangeStreamCaptureMode);
    int before = capture_mode;
    capture_mode = *mode, *mode = before;
    return SUCCESS;
}

CUresult cuStreamBeginCapture(Stream *stream, int mode) {
    LOCKED(cuStreamBeginCapture);
    stream->capturing = 1, captures++;
    return SUCCESS;
}

CUresult cuStreamEndCapture(Stream *stream, void **graph) {
    LOCKED(cuStreamEndCapture);
    stream->capturing = 0, captures--;
    *graph = NULL;
    return SUCCESS;
}

CUresult cuStreamIsCapturing(Stream *stream, int *status) {
    IN_CONTEXT(cuStreamIsCapturing);
    *status = known(stream)->capturing;
    return SUCCESS;
}

/* Memory */

static Range *range_of(Range *ranges, uint64_t start) { /* 0: a free one */
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].start == start) return &ranges[i];
    return NULL;
}

CUresult cuMemGetAllocationGranularity(size_t *grain, const Prop *wanted, int option) {
    IN_CONTEXT(cuMemGetAllocationGranularity);
    *grain = GRAIN;
    return SUCCESS;
}

CUresult cuMemCreate(Handle *handle, size_t nbytes, const Prop *wanted, uint64_t flags) {
    LOCKED(cuMemCreate);
    if (nbytes % GRAIN || wanted->type != 1 || wanted->handle_types != 1 || wanted->location.type != 1)
        return INVALID_VALUE;
    int file = memfd_create("gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, nbytes)) return OUT_OF_MEMORY;
    void *all = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    memset(all, 0xcc, nbytes); /* nobody may rely on zeros */
    munmap(all, nbytes);
    *handle = file + 1;
    return SUCCESS;
}

CUresult cuMemRelease(Handle handle) {
    LOCKED(cuMemRelease);
    return close(handle - 1) ? INVALID_VALUE : SUCCESS;
}

CUresult cuMemExportToShareableHandle(int *descriptor, Handle handle, int kind, uint64_t flags) {
    LOCKED(cuMemExportToShareableHandle);
    return kind != 1 || (*descriptor = dup(handle - 1)) < 0 ? INVALID_VALUE : SUCCESS;
}

CUresult cuMemImportFromShareableHandle(Handle *handle, void *descriptor, int kind) {
    LOCKED(cuMemImportFromShareableHandle);
    int file = dup((int)(intptr_t)descriptor);
    if (kind != 1 || file < 0) return INVALID_VALUE;
    *handle = file + 1;
    return SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t nbytes, size_t alignment, CUdeviceptr near, uint64_t flags) {
    LOCKED(cuMemAddressReserve);
    void *start = mmap(NULL, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return OUT_OF_MEMORY;
    *pointer = (CUdeviceptr)start;
    return SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t nbytes) {
    LOCKED(cuMemAddressFree);
    return range_of(mapped, pointer) || munmap((void *)pointer, nbytes) ? INVALID_VALUE : SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t nbytes, size_t offset, Handle handle, uint64_t flags) {
    LOCKED(cuMemMap);
    void *start = mmap((void *)pointer, nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, handle - 1, offset);
    Range *range = range_of(mapped, 0);
    if (start == MAP_FAILED || !range) return INVALID_VALUE;
    *range = (Range){.start = pointer, .end = pointer + nbytes};
    return SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t nbytes, const Access *allowed, size_t count) {
    LOCKED(cuMemSetAccess);
    Range *range = range_of(mapped, pointer);
    if (!range || range->end != pointer + nbytes || count != 1 || allowed->flags != 3) return INVALID_VALUE;
    range->usable = !mprotect((void *)pointer, nbytes, PROT_READ | PROT_WRITE);
    return range->usable ? SUCCESS : INVALID_VALUE;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t nbytes) {
    LOCKED(cuMemUnmap);
    Range *range = range_of(mapped, pointer);
    if (!range || range->end != pointer + nbytes) return INVALID_VALUE;
    *range = (Range){0};
    mmap((void *)pointer, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return SUCCESS;
}

CUresult cuMemHostRegister(void *pointer, size_t nbytes, unsigned flags) {
    LOCKED(cuMemHostRegister);
    Range *range = range_of(registered, 0);
    if (!range || !(flags & 2) || range_of(registered, (uint64_t)pointer)) return INVALID_VALUE; /* 2: for the device */
    *range = (Range){.start = (uint64_t)pointer, .end = (uint64_t)pointer + nbytes, .usable = 1};
    return SUCCESS;
}

CUresult cuMemHostUnregister(void *pointer) {
    LOCKED(cuMemHostUnregister);
    Range *range = range_of(registered, (uint64_t)pointer);
    if (!range) return INVALID_VALUE;
    *range = (Range){0};
    return SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *pointer, void *host, unsigned flags) {
    IN_CONTEXT(cuMemHostGetDevicePointer);
    if (!usable(registered, (uint64_t)host)) return INVALID_VALUE;
    *pointer = (CUdeviceptr)host + alias;
    return SUCCESS;
}

/* Context and versions */

CUresult cuInit(unsigned flags) { BEGIN(cuInit); return SUCCESS; }
CUresult cuDriverGetVersion(int *given) { BEGIN(cuDriverGetVersion); *given = version; return SUCCESS; }
CUresult cuDeviceGet(int *device, int ordinal) { BEGIN(cuDeviceGet); *device = ordinal; return SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(void **context, int device) {
    BEGIN(cuDevicePrimaryCtxRetain);
    *context = &driver;
    return SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(int device) { BEGIN(cuDevicePrimaryCtxRelease); return SUCCESS; }
CUresult cuCtxPushCurrent(void *context) { BEGIN(cuCtxPushCurrent); contexts++; return SUCCESS; }
CUresult cuCtxPopCurrent(void **context) {
    BEGIN(cuCtxPopCurrent);
    contexts--;
    *context = &driver;
    return SUCCESS;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **found, int wanted, uint64_t flags, int *status) {
    int newest = -1;
    *found = strcmp(symbol, "cuGetProcAddress") ? NULL : (void *)cuGetProcAddress_v2;
    if (wanted > version) return NOT_FOUND;
#define OFFER(of, function, since) \
    if (!strcmp(symbol, #of) && since <= wanted && since > newest) newest = since, *found = (void *)function;
    CALLS(OFFER)
    return *found ? SUCCESS : NOT_FOUND;
}

/* For tests */

void shim_version(int given) { version = given; } /* before the bindings are used */
void shim_hardware_queues(int number) { hardware_queues = number; next_queue = 0; } /* of streams made from now on */
void shim_room(int number) { room = number; }
void shim_alias(uint64_t given) { alias = given; }

static int number_of(const char *name, int from) {
    while (from < HOW_MANY && strcmp(calls[from].name, name)) from++;
    return from;
}

int shim_called(const char *name) {
    int sum = 0;
    for (int i = number_of(name, 0); i < HOW_MANY; i = number_of(name, i + 1)) sum += atomic_load(&calls[i].called);
    return sum;
}

void shim_fail(const char *name, int after, int code) { /* once; 1 is the next call */
    for (int i = number_of(name, 0); i < HOW_MANY; i = number_of(name, i + 1)) {
        atomic_store(&calls[i].code, code);
        atomic_store(&calls[i].fails_after, after);
    }
}

int shim_idle(void) { /* whether nothing can run: every queue is empty, or waits for what has not come */
    uint64_t done[2] = {0, 0};
    for (int turn = 0; turn < 2; turn++) /* twice: what ended meanwhile may let an earlier queue run */
        for (int number = 0; number < QUEUES; number++) {
            Queue *queue = queues[number];
            if (!queue) continue;
            pthread_mutex_lock(&queue->lock);
            int idle = queue->done == queue->issued || !has_come(&queue->todo[queue->done % MOST_ROOM]);
            done[turn] += queue->done;
            pthread_mutex_unlock(&queue->lock);
            if (!idle) return 0;
        }
    return done[0] == done[1];
}

int shim_mapped(void) {
    int number = 0;
    for (int i = 0; i < RANGES; i++) number += (mapped[i].start != 0) + (registered[i].start != 0);
    return number;
}
