/* velo.h: the C ABI of libvelo. Read by cffi in ABI mode (velo/_native), so: no macros beyond the guard, no inline code;
 * limits are an enum.
 *
 * Rules. Handles are opaque: pointers, or numbers, 0 for none. Every call returns a velo_status; details of the last failure of the calling thread come
 * from velo_last_error. Results leave through *_out; arrays belong to the caller. Structs start with struct_size (set
 * by the caller) and are only ever appended to; a zero field means "the default". No call calls back. Every call may
 * run without the GIL, and any handle may be used from several threads at once unless its comment says otherwise.
 * A "vertex" is a position in placement order, 0 <= vertex < n; a "row" is a position in the input.
 */
#ifndef VELO_H
#define VELO_H
#include <stddef.h>
#include <stdint.h>

typedef enum velo_status {
    VELO_OK = 0,
    VELO_INVALID_ARGUMENT = 1,     /* error.argument names it */
    VELO_DIMENSION_MISMATCH = 2,
    VELO_NOT_FINITE = 3,           /* NaN or infinity; error.row says where */
    VELO_EMPTY = 4,                /* an empty set of vectors */
    VELO_NOT_AN_INDEX = 5,         /* no manifest, or not ours */
    VELO_CORRUPT = 6,              /* error.file, error.page */
    VELO_UNSUPPORTED_VERSION = 7,
    VELO_IO = 8,                   /* the device or file system failed; error.file */
    VELO_NO_SPACE = 9,
    VELO_PERMISSION = 10,
    VELO_OUT_OF_MEMORY = 11,
    VELO_BUDGET_TOO_SMALL = 12,    /* error.needed_bytes is the minimum */
    VELO_CANCELED = 13,
    VELO_TIMEOUT = 14,
    VELO_CLOSED = 15,
    VELO_FORKED = 16,              /* the handle was opened in another process */
    VELO_FILTER = 17,              /* a malformed filter program, or a column it needs is missing */
    VELO_BUSY = 18,                /* a queue with a limit is full */
    VELO_EXISTS = 19,              /* the target folder already holds something */
    VELO_UNSUPPORTED = 20,         /* this index was built without what the call needs */
    VELO_INTERNAL = 21,
    VELO_GPU = 22                  /* no driver, or an old one, no such GPU, or too little of its memory: error.needed_bytes */
} velo_status;

typedef struct velo_error {
    uint32_t struct_size;
    int32_t status;
    char message[512];             /* one sentence, UTF-8, NUL-terminated */
    char argument[64];             /* name of the argument at fault, or "" */
    char file[256];                /* file inside the index folder, or "" */
    int64_t page;                  /* page of that file, or -1 */
    int64_t row;                   /* row of the input, or -1 */
    uint64_t needed_bytes;         /* for VELO_BUDGET_TOO_SMALL */
} velo_error;

int32_t velo_last_error(velo_error *error_out);
/* "0.1.0"; static storage. */
const char *velo_version(void);
/* The CPU level in use: "base", "v3", "v4" or "dotprod"; static storage. */
const char *velo_cpu_level(void);
/* How this library was compiled: "ReleaseSafe" as it ships, "Debug", …; kernels are optimised in all of them. Static storage. */
const char *velo_build_mode(void);
/* How the structs below lie in memory in this library, for tests: a line a struct, its name, its size, and
 * `name:offset:size:type` for each field; static storage. */
const char *velo_struct_layouts(void);

typedef enum velo_metric { VELO_METRIC_L2 = 0, VELO_METRIC_IP = 1, VELO_METRIC_COSINE = 2 } velo_metric;
typedef enum velo_dtype { VELO_DTYPE_F32 = 0, VELO_DTYPE_F16 = 1, VELO_DTYPE_U8 = 2, VELO_DTYPE_I8 = 3 } velo_dtype;
typedef enum velo_io { VELO_IO_AUTO = 0, VELO_IO_URING = 1, VELO_IO_THREADS = 2, VELO_IO_SIMULATED = 3 } velo_io;
typedef enum velo_plan {
    VELO_PLAN_AUTO = 0,
    VELO_PLAN_LINKS_IN_MEMORY = 1,
    VELO_PLAN_LINKS_ON_DISK = 2,
    VELO_PLAN_WALK = 3             /* a few codes of each page are all that is in memory; of indexes built with page_codes */
} velo_plan;

/* What may be asked for, at least and at most, by the names of the arguments. What lies outside is VELO_INVALID_ARGUMENT with
 * that name, nothing is clamped; a zero that stands for "the default" is allowed besides. */
typedef enum velo_limit {
    VELO_DIM_MIN = 1, VELO_DIM_MAX = 8192,
    VELO_MEMORY_BITS_MIN = 1, VELO_MEMORY_BITS_MAX = 6,
    VELO_RECORD_BITS_MIN = 0, VELO_RECORD_BITS_MAX = 8,
    VELO_DEGREE_MIN = 4, VELO_DEGREE_MAX = 128,
    VELO_BUILD_LIST_SIZE_MIN = 8, VELO_BUILD_LIST_SIZE_MAX = 2000,
    VELO_ALPHA_MIN = 1, VELO_ALPHA_MAX = 4,
    VELO_RECORD_CODE_BYTES_MIN = 0, VELO_RECORD_CODE_BYTES_MAX = 64, /* at most the dimensions */
    VELO_LINKS_KEPT_MIN = 0, VELO_LINKS_KEPT_MAX = 128,     /* of a build at most its degree, of an open at most as built */
    VELO_AFFINITY_PERCENT_MIN = 1, VELO_AFFINITY_PERCENT_MAX = 99,
    VELO_CHECKPOINT_MS_MIN = 1, VELO_CHECKPOINT_MS_MAX = 1000000000,
    VELO_THREADS_MIN = 1, VELO_THREADS_MAX = 1024,
    VELO_QUERIES_IN_FLIGHT_MIN = 1, VELO_QUERIES_IN_FLIGHT_MAX = 256,
    VELO_QUEUE_DEPTH_MIN = 1, VELO_QUEUE_DEPTH_MAX = 4096,
    VELO_CACHE_SHARE_PERCENT_MIN = 0, VELO_CACHE_SHARE_PERCENT_MAX = 95,
    VELO_K_MIN = 1, VELO_K_MAX = 4096,
    VELO_LIST_SIZE_MIN = 1, VELO_LIST_SIZE_MAX = 8192,
    VELO_BEAM_WIDTH_MIN = 1, VELO_BEAM_WIDTH_MAX = 64,
    VELO_BURST_MAX_MIN = 1, VELO_BURST_MAX_MAX = 128,
    VELO_SIGMA_MIN = 0, VELO_SIGMA_MAX = 100,
    VELO_SEGMENTS_MIN = 1, VELO_SEGMENTS_MAX = 64                 /* of one search */
} velo_limit;

/* What searches do that estimates of their cost rely on. */
typedef enum velo_constant {
    VELO_ENTRIES_LOOKED = 256      /* entry points that a search estimates, or hardly more, where there are so many */
} velo_constant;

/* ---- the device, for `velo doctor` ---- */

typedef struct velo_device_info {
    uint32_t struct_size;
    int32_t io;                    /* velo_io that is, or would be, in use */
    int32_t direct;                /* 1: O_DIRECT; 0: buffered reads */
    int32_t uring_errno;           /* 0: io_uring works; else the errno with which the kernel refused it */
    int32_t direct_errno;          /* 0: O_DIRECT works in that folder; else the errno */
    uint32_t queue_depth;
    char name[32];                 /* "uring", "threads", "simulated" */
    char reason[256];              /* why this device, one sentence */
    char advice[256];              /* how to get the better one, or "" */
} velo_device_info;

/* Probe the device for files in `folder` (a scratch file of one page is written and removed there when it is writable). */
int32_t velo_device_probe(const char *folder, int32_t io, velo_device_info *info_out);

/* ---- GPUs ---- */

typedef enum velo_gpu_state {
    VELO_GPU_NONE = 0,             /* none was asked for */
    VELO_GPU_READY = 1,            /* large calls are navigated for by it */
    VELO_GPU_CPU = 2,              /* calls stay on the CPU; `reason` says why */
    VELO_GPU_LOST = 3              /* it failed, and calls stay on the CPU from then on; `reason` says how */
} velo_gpu_state;

typedef struct velo_gpu_info {
    uint32_t struct_size;
    int32_t state;                 /* velo_gpu_state */
    uint32_t ordinal;
    uint32_t count;                /* of velo_gpu_probe: GPUs that the driver sees */
    uint32_t compute;              /* compute capability: 90 is 9.0 */
    uint32_t driver_version;       /* newest CUDA that the driver knows: 12040 is 12.4 */
    uint64_t total_bytes;          /* of device memory */
    uint64_t free_bytes;           /* of velo_gpu_probe */
    uint64_t resident_bytes;       /* codes and links of this index */
    uint64_t batches;              /* of all indexes on this GPU, as the next three */
    uint64_t queries;
    uint64_t failed_queries;       /* of them, those whose batch failed or brought no list: the CPU has answered them */
    uint64_t busy_us;              /* from upload to download, of all batches */
    char name[96];
    char reason[256];
} velo_gpu_info;

/* A GPU by its number, from 0 on. Loads the driver, which nothing else does but velo_open_options.gpu. */
int32_t velo_gpu_probe(uint32_t ordinal, velo_gpu_info *info_out);

/* Of libvelo_sim only: GPUs that this process sees in the place of real ones. */
typedef struct velo_gpu_simulation {
    uint32_t struct_size;
    uint32_t devices;
    uint32_t version;              /* of the driver, as in velo_gpu_info */
    int32_t failure;               /* CUresult of the call `fail_call` */
    uint64_t memory_bytes;
    uint64_t others_bytes;         /* of it the memory of other processes */
    uint64_t fail_call;            /* the number of a call, from 1 on; 0 = none */
    uint64_t lost_from;            /* from this call on the GPU is lost; 0 = never */
    char function[40];             /* the two numbers count calls of this function of the driver; "" = of all */
} velo_gpu_simulation;
/* NULL takes them away. No index may be open. */
int32_t velo_gpu_simulate(const velo_gpu_simulation *simulation);

/* ---- building ---- */

typedef struct velo_build velo_build;

typedef struct velo_build_options {
    uint32_t struct_size;
    uint32_t dim;
    uint64_t row_count;            /* exact number of rows that scan and add will bring */
    int32_t metric;
    int32_t dtype;                 /* of the rows given to scan and add */
    uint32_t memory_bits;          /* code bits a dimension in memory, 1..6; 0 = 4 */
    uint32_t record_bits;          /* code bits a dimension in the record, 0..8; taken as it is (velo.build: 6) */
    uint32_t degree;               /* R; 0 = 48 */
    uint32_t build_list_size;      /* L; 0 = 100 */
    float alpha;                   /* 0 = 1.2 */
    uint32_t links_kept;           /* links a vertex in links.bin: 0..degree; UINT32_MAX = 32 */
    uint32_t threads;              /* 0 = all cores; 1 = deterministic */
    uint64_t seed;
    uint64_t memory_bytes;         /* 0 = no limit; else resident growth stays below it + 64 MiB, in partitions where the
                                    * graph does not fit, or BUDGET_TOO_SMALL */
    int32_t store_vectors;         /* 1: keep vectors.bin (dtype of the input); 2: the same, of a transient build to which
                                    * velo_build_vectors gives the rows, so that they are written once */
    int32_t overwrite;             /* 1: an index that stands there stops being one at once, and this build takes its folder */
    uint32_t affinity_percent;     /* records of one color lie within this percentile of a cluster's distances; 0 = 5 */
    int32_t restart;               /* 1: begin at the first row even where a killed build of the same input left its work */
    uint32_t checkpoint_ms;        /* between two times that the state of a stage is saved, at least; 0 = 30,000 */
    int32_t no_page_links;         /* 1: pages hold more records and no neighbor lists: links must be in memory to search */
    int32_t transient;             /* 1: no build goes on from this one: nothing is saved for that, and its work stays in
                                    * memory where memory_bytes has room */
    int32_t gives_way;             /* 1: several threads link and place while processors have nothing else to do; where
                                    * nothing is left to them, the thread of velo_build_run works with its own priority */
    int32_t page_codes;            /* 1: pages hold whole codes and a table of neighbors, and page_codes.bin a few codes of each: an
                                    * index needs both to open in less memory than codes take */
    int32_t gpu;                   /* links vertices with a GPU: as velo_open_options.gpu */
    int32_t places_once;           /* 1: pages are filled in one go, in a third of the time; a search reads a few pages more */
    uint32_t record_code_bytes;    /* with page_codes: of a code of each record in page_codes.bin; 0: it has none */
} velo_build_options;

typedef enum velo_build_stage {
    VELO_STAGE_SCAN = 0, VELO_STAGE_ENCODE = 1, VELO_STAGE_GRAPH = 2, VELO_STAGE_PLACE = 3, VELO_STAGE_WRITE = 4,
    VELO_STAGE_COMMIT = 5, VELO_STAGE_DONE = 6
} velo_build_stage;

typedef struct velo_build_progress {
    uint32_t struct_size;
    int32_t stage;                 /* velo_build_stage */
    uint64_t done;                 /* of `total`, in rows, within the stage; a graph in partitions links most rows twice */
    uint64_t total;
    int32_t resumed_stage;         /* velo_build_stage in which this build went on from a killed one; 0 = it did not */
    uint64_t resumed_done;         /* rows of that stage which were done already */
} velo_build_progress;

/* Create `path` (a folder) with its work files. A folder that is not an index and not empty is VELO_EXISTS. A folder that a
 * killed build left is taken over. When the last row was scanned and rows and options (but for memory_bytes, checkpoint_ms
 * and the number of threads where it is above one) are those of that build, this one goes on where it was (behind encoding
 * only if memory_bytes makes as many partitions): ask velo_build_progress_get. At VELO_STAGE_ENCODE add is to begin with row `done`, at a later stage add is left out. */
int32_t velo_build_open(const char *path, const velo_build_options *options, velo_build **build_out);
/* First pass: every row once, in order, in chunks of any size. Checks finiteness, takes the mean and the largest norm.
 * row_stride is in bytes; elements of a row are contiguous. One thread at a time. */
int32_t velo_build_scan(velo_build *build, const void *rows, uint64_t row_count, uint64_t row_stride);
/* Second pass: the same rows again in the same order; rotates and encodes. One thread at a time. */
int32_t velo_build_add(velo_build *build, const void *rows, uint64_t row_count, uint64_t row_stride);
/* Between velo_build_open and velo_build_run: the graph goes on from that of the index in the folder `path`, in which most
 * rows were, for a quarter of the work. rows[v] is the row that vertex v of that index has in this build, UINT32_MAX where
 * it has none; vertex_count is its number of vertices. Metric and dimension must be the same, and its degree no greater.
 * The folder is read in velo_build_run. Without room in memory_bytes, or where the build is in partitions, it is not used.
 *
 * Where neither that index nor this one stores vectors, and both have the same bits, its codes are copied: the rows given are
 * then what velo_decode_vectors tells of these vertices, and rows[v] ascend with v. They are encoded again where its centers are
 * far from the rows of today. */
int32_t velo_build_warm_start(velo_build *build, const char *path, const uint32_t *rows, uint64_t vertex_count);
/* Graph, placement, pages. Blocks; velo_build_progress_get and velo_build_cancel may be called meanwhile. */
int32_t velo_build_run(velo_build *build);
int32_t velo_build_progress_get(velo_build *build, velo_build_progress *progress_out);
/* The GPU of the build, not while velo_build_run is under way: `batches`, and `queries` for the vertices that it found the
 * neighbors of. After VELO_GPU_LOST, which lack of memory is here, too, the CPU has gone on. */
int32_t velo_build_gpu_get(velo_build *build, velo_gpu_info *info_out);
/* The running call returns VELO_CANCELED soon after. */
int32_t velo_build_cancel(velo_build *build);
/* rows_out[vertex] = row, n entries; between run and commit. */
int32_t velo_build_order(velo_build *build, uint32_t *rows_out);
/* Third pass, between run and commit, where store_vectors is 2: the same rows in the order of velo_build_order, in chunks of any
 * size. One thread at a time. */
int32_t velo_build_vectors(velo_build *build, const void *rows, uint64_t row_count, uint64_t row_stride);
/* Write manifest.json last, by rename after fsync. `extra_files` are names inside the folder, written by the caller
 * before (ids.arrow, columns.arrow, …): their sizes and checksums enter the manifest. `extra_json` is one JSON object
 * kept verbatim under "user" in the manifest, or NULL. */
int32_t velo_build_commit(velo_build *build, const char *const *extra_files, uint32_t extra_count, const char *extra_json);
/* What was done stays when the build is closed, for a later one of the same rows and options, as after a kill. No other
 * call of this build may be running. */
int32_t velo_build_keep(velo_build *build);
/* Always call it. Work files are removed, and without a commit all of the index (and the folder, if the build made it).
 * Until then a build that is killed after its commit can be taken over, too. `*build` is taken and NULL from then on. */
int32_t velo_build_close(velo_build **build);

/* ---- an open index ---- */

typedef struct velo_live_view velo_live_view;
typedef struct velo_filter velo_filter;

/* Handles that one thread may close while others call with them. A call with a handle that was closed returns VELO_CLOSED, one
 * with a handle of the parent in a child of fork VELO_FORKED. A close keeps further calls out and waits for those inside; after
 * 100 ms it returns VELO_BUSY, and is to be called again. A second close does nothing. */
typedef uint64_t velo_index;
typedef uint64_t velo_live;
typedef uint64_t velo_scope;

/* A scope is for blocks of several calls: it closes when no block holds it. `held_out` is 0 before; velo_scope_leave sets it to 0
 * and does nothing where it is, so that a block ends once, whatever interrupted the caller. */
int32_t velo_scope_open(velo_scope *scope_out);
int32_t velo_scope_check(velo_scope scope);
int32_t velo_scope_enter(velo_scope scope, velo_scope *held_out);
int32_t velo_scope_leave(velo_scope *held);
int32_t velo_scope_close(const velo_scope *scope);

typedef struct velo_open_options {
    uint32_t struct_size;
    int32_t io;                    /* velo_io */
    int32_t plan;                  /* velo_plan */
    uint32_t threads;              /* workers; 0 = all cores */
    uint64_t memory_bytes;         /* 0 = what codes and links need, and cache_bytes */
    uint32_t links_kept;           /* 0 = by plan; UINT32_MAX = as built; of VELO_PLAN_WALK codes of each page */
    uint32_t queries_in_flight;    /* B, a worker; 0 = as measured while running, at most 16 */
    int32_t buffered;              /* 1: no O_DIRECT even where it works */
    uint64_t simulated_seed;       /* libvelo_sim only: seed of the fault plan */
    uint32_t simulated_faults;     /* libvelo_sim only: bit set, see docs/HACKING.md */
    uint32_t queue_depth;          /* reads in flight a worker; 0 = 64 */
    double cache_share;            /* share of memory_bytes for a cache: of pages, or of records with links on disk; negative = by plan */
    velo_index workers_of;         /* search with the workers of this index, whatever the options say of threads, queues and
                                    * device; 0 = with those of the indexes that were opened with the same options */
    uint64_t cache_bytes;          /* for whole pages beside codes and links where memory_bytes is 0 */
    int32_t gpu;                   /* 0 = none; a GPU by its number + 1: VELO_GPU where it cannot be had; negated: none then */
    uint32_t gpu_queries;          /* calls of fewer queries stay on the CPU; 0 = 16 times the square of threads, at least 64 */
} velo_open_options;

int32_t velo_index_open(const char *path, const velo_open_options *options, velo_index *index_out);
/* Submitted searches that have not ended end with VELO_CLOSED; workers stop with the last of their indexes. */
int32_t velo_index_close(const velo_index *index);

typedef struct velo_index_info {
    uint32_t struct_size;
    uint32_t dim;
    uint64_t n;
    int32_t metric;
    int32_t dtype;                 /* of the vectors it was built from */
    uint32_t memory_bits;
    uint32_t record_bits;
    uint32_t degree;
    uint32_t links_built;          /* links a vertex in links.bin */
    uint32_t links_kept;           /* of them in memory now */
    uint32_t page_size;            /* bytes */
    uint64_t page_count;
    double records_per_page;
    double edges_per_vertex;
    double adjacency_bits_per_edge;
    uint32_t threads;
    uint32_t queries_in_flight;
    int32_t plan;                  /* velo_plan in use */
    int32_t stores_vectors;
    uint64_t memory_codes_bytes;
    uint64_t memory_links_bytes;
    uint64_t memory_cache_bytes;
    uint64_t memory_pages_bytes;   /* the page directory */
    uint64_t memory_workers_bytes; /* query states and buffers */
    uint64_t memory_budget_bytes;  /* as asked for; 0 = none */
    velo_device_info device;
    char uuid[40];
    int32_t page_links;            /* 1: pages hold neighbor lists, so links may stay on disk */
    int32_t page_codes;            /* 1: built with codes of pages */
    uint32_t page_codes_kept;      /* codes of each page in memory; 0 on every other plan than VELO_PLAN_WALK */
    int32_t cache_refused;         /* 1: the system refused memory for cached pages; searches read them */
    velo_gpu_info gpu;
    uint32_t record_code_bytes;    /* of the build; 0: page_codes.bin has no codes of records */
    int32_t record_codes_kept;     /* 1: they are in memory */
} velo_index_info;

int32_t velo_index_info_get(velo_index index, velo_index_info *info_out);

typedef struct velo_search_options {
    uint32_t struct_size;
    uint32_t k;                    /* >= 1 */
    uint32_t list_size;            /* L; 0 = from `recall`, else the default */
    float recall;                  /* 0 = not given; else a target, at most 1, that the list size is chosen for; at 1 all stored vectors are scored */
    uint64_t timeout_us;           /* 0 = none */
    uint32_t beam_width;           /* links on disk: reads asked for ahead; 0 = 4 */
    uint32_t burst_max;            /* pages in the first burst at most; 0 = by plan */
    float sigma;                   /* burst threshold in standard deviations; negative or 0 = by plan */
    int32_t filter_plan;           /* 0 auto, 1 late, 3 gate, 4 scan: see docs/HACKING.md */
    int32_t exact;                 /* 1: the last candidates are scored from the stored vectors (VELO_UNSUPPORTED without
                                    * them): distances in float64, rounded to float, and the order that they make; 0: by
                                    * plan; -1: never */
    const uint32_t *excluded_vertices; /* NULL, or query_count vertices (UINT32_MAX: none) that are taken as absent, so that
                                    * a row of the index can be a query (for calibration; without a filter). Alive until the
                                    * search has ended */
    int32_t count_used;            /* 1: records_used is counted, which takes a little; else it is 0 */
    uint32_t reserved;
} velo_search_options;

/* One entry a query; any pointer may be NULL when not wanted. ids and distances hold query_count * k entries, rows
 * padded with -1 and infinity; counts says how many are real. */
typedef struct velo_search_out {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t *vertices;             /* (query_count, k), ascending distance */
    float *distances;              /* (query_count, k): squared L2, negated inner product, 1 - cosine; estimates from codes
                                    * unless `exact` was asked for */
    uint32_t *counts;
    int32_t *statuses;             /* velo_status of each query */
    int64_t *error_pages;          /* page at fault, or -1 */
    uint32_t *reads;               /* device reads that it caused */
    uint32_t *rounds;              /* dependent read rounds */
    uint64_t *bytes_read;
    uint32_t *cache_hits;
    uint32_t *estimates;           /* distances estimated from in-memory codes */
    uint32_t *expanded;            /* vertices whose links were followed */
    uint32_t *filtered;            /* vertices navigated through that failed the filter */
    uint64_t *latency_us;          /* from the moment a worker took the query up to its end */
    uint32_t *records_scored;      /* records of read pages scored with their full code */
    uint32_t *records_used;        /* of them, those that ended in the list or the results */
    uint32_t *shared_reads;        /* pages that another query's read brought; they are not among `reads` */
    int32_t *error_files;          /* whose page it is: 0 pages.bin, 1 vectors.bin */
    uint32_t *outside;             /* 1 where the query lies outside the rows, which no calibration measured */
} velo_search_out;

/* Blocking. `queries` are query_count rows of dim elements, contiguous. filters: NULL, or filter_count handles with
 * filter_count 1 (the same for all) or query_count (each may be NULL). Returns VELO_OK when every query did; else the
 * first failing status, and `statuses` tells each. */
int32_t velo_search(velo_index index, const void *queries, int32_t dtype, uint64_t query_count,
                    const velo_filter *const *filters, uint64_t filter_count,
                    const velo_search_options *options, velo_search_out *out);

/* The same over several indexes as if they were one: a query is answered in all of them at once, within one bound and by
 * one burst of reads. They have one dimension and one metric, and share workers (velo_open_options.workers_of). Options
 * are resolved for each of them. Counters are sums; `rounds` are those of all together. */
typedef struct velo_segment {
    velo_index index;
    int64_t first;                 /* what its vertices are counted from in the answer */
    const velo_filter *const *filters; /* filter_count of them; NULL = all rows */
} velo_segment;
/* Rows of live data that no segment holds yet (velo_live_view), by their vectors. With a recall of 1, or a list_size (0: none
 * named) of as many as there are rows, every row is measured; else those that may be among the k nearest by estimates from
 * their codes, which miss none that anybody notices, and the newest, which have no code. masks: bits of the rows that pass, none,
 * one for all queries or one each (NULL: all). */
typedef struct velo_delta {
    uint32_t struct_size;
    uint32_t mask_count;
    const velo_live_view *view;    /* it outlives the search */
    int64_t first;                 /* what its rows are counted from in the answer */
    const uint8_t *const *masks;
    uint32_t list_size;
    float recall;
} velo_delta;
/* delta: NULL, or rows that answer beside the segments. All of them that live and pass count among the estimates. */
int32_t velo_search_segments(const velo_segment *segments, uint32_t segment_count, const velo_delta *delta, const void *queries, int32_t dtype,
                          uint64_t query_count, uint64_t filter_count,
                          const velo_search_options *options, velo_search_out *out);

/* How a filtered search will go about it, and what each plan is expected to take. */
typedef struct velo_filter_cost {
    uint32_t possible;             /* 0: the plan cannot be had as the index is open */
    uint32_t reserved;
    double reads;
    double estimates;
    double expanded;
    double us;                     /* of one core, on a machine like the one it was measured on: for comparing plans */
} velo_filter_cost;
typedef struct velo_filter_plan_info {
    uint32_t struct_size;
    int32_t plan;                  /* as velo_search_options.filter_plan: what the search takes */
    double matches;                /* rows that pass */
    uint32_t matches_exact;        /* 0: estimated from a sample */
    uint32_t list_size;
    velo_filter_cost scan;
    velo_filter_cost gate;
    velo_filter_cost late;
    uint64_t gate_needs_bytes;     /* memory with which the gate could be had; 0 where it can, or with no budget */
} velo_filter_plan_info;
int32_t velo_filter_plan(velo_index index, const velo_filter *filter, const velo_search_options *options,
                         velo_filter_plan_info *plan_out);

/* The asynchronous form: queries are copied, `out` and the filters must stay alive until the ticket is reaped. The first
 * index has the ticket.
 * VELO_BUSY when too many tickets wait. velo_event_fd is an eventfd (nonblocking), readable when tickets finished. */
int32_t velo_submit_segments(const velo_segment *segments, uint32_t segment_count, const velo_delta *delta, const void *queries, int32_t dtype,
                          uint64_t query_count, uint64_t filter_count,
                          const velo_search_options *options, velo_search_out *out, uint64_t ticket);
/* Queries first_query to query_count - 1, each as a search of its own, with tickets first_ticket, first_ticket + 1, …; there
 * is one filter for all, or none. Ends at the first query that is refused: submitted_out has the number of those before it. */
int32_t velo_submit_each(const velo_segment *segments, uint32_t segment_count, const velo_delta *delta, const void *queries, int32_t dtype,
                         uint64_t query_count, uint64_t filter_count,
                         const velo_search_options *options, velo_search_out *out, uint64_t first_query, uint64_t first_ticket, uint64_t *submitted_out);
typedef struct velo_completion { uint64_t ticket; int32_t status; uint32_t reserved; } velo_completion;
int32_t velo_reap(velo_index index, velo_completion *completions_out, uint32_t capacity, uint32_t *count_out);
/* The ticket's queries end as VELO_CANCELED as soon as a worker looks at them; the ticket is reaped as ever. One that has
 * ended already is left as it is. */
int32_t velo_cancel(velo_index index, uint64_t ticket);
/* fd_out: a descriptor for the caller to close. */
int32_t velo_event_fd(velo_index index, int32_t *fd_out);

/* The stored vectors (VELO_UNSUPPORTED without them), as float32, in the space of the input. */
int32_t velo_get_vectors(velo_index index, const uint32_t *vertices, uint64_t count, float *vectors_out);
/* What the whole codes tell of the vectors, stored or not, as float32, in the space of the input: as far from them as the
 * codes err. Whole numbers where the input was of whole numbers; of VELO_METRIC_COSINE a direction of length 1, or zero. */
int32_t velo_decode_vectors(velo_index index, const uint32_t *vertices, uint64_t count, float *vectors_out);

/* Storing the vectors of an index that was built without them: open, then every row of the build once and in its order,
 * then commit. `dim` and `dtype` are those of the rows, and of the index. `order` holds the row of each vertex, `count` of them (velo_build_order). The index is whole all the while:
 * without the file until commit has renamed a manifest that names it, with all of it from then on. An index that is open
 * goes on with what it has read. A folder that stores its vectors already is VELO_INVALID_ARGUMENT. One thread at a time. */
typedef struct velo_vectors velo_vectors;
int32_t velo_vectors_open(const char *path, uint32_t dim, int32_t dtype, const uint32_t *order, uint64_t count,
                          velo_vectors **vectors_out);
int32_t velo_vectors_add(velo_vectors *vectors, const void *rows, uint64_t row_count, uint64_t row_stride);
int32_t velo_vectors_commit(velo_vectors *vectors);
/* Always call it. Without a commit nothing is left of what was added. */
int32_t velo_vectors_close(velo_vectors *vectors);

/* Read every file whole and check every checksum, page and link. *pages_checked_out may be NULL. Needs no open index. */
int32_t velo_verify(const char *path, uint64_t *pages_checked_out);

/* ---- calibration: the table behind `recall` ---- */

/* out[i * y_count + j] = the sum of x_i * y_j over `len` elements, of rows that lie one after the other; in this thread alone. */
int32_t velo_products(const double *x, uint64_t x_count, const double *y, uint64_t y_count, uint32_t len, double *out);

/* Put the table into the manifest of an index (docs/FORMAT.md, "calibration"), in the place of the one there; NULL takes
 * it out. The manifest is replaced by rename: an index that is open goes on with what it has read. */
int32_t velo_calibration_store(const char *path, const char *calibration_json);

typedef struct velo_expectation {
    uint32_t struct_size;
    int32_t calibrated;            /* 1: measured by the build; 0: it measured nothing, and what follows the list is 0 */
    uint32_t list_size;            /* that a search with these options uses */
    float recall;                  /* and what it is expected to be like, a query without a filter */
    float reads;
    float rounds;
    float estimates;
    float expanded;
    float records_scored;
} velo_expectation;

int32_t velo_expect(velo_index index, const velo_search_options *options, velo_expectation *expectation_out);

typedef struct velo_memory_plan {
    uint32_t struct_size;
    int32_t plan;                  /* velo_plan */
    uint32_t links_kept;
    uint32_t page_codes_kept;      /* codes of each page, VELO_PLAN_WALK */
    uint64_t codes_bytes;
    uint64_t pages_bytes;
    uint64_t links_bytes;          /* an estimate where fewer links are kept than were built */
    uint64_t cache_bytes;          /* what is left: for records with links on disk, else for whole pages */
} velo_memory_plan;

/* What opening this index with that budget (0: none) would choose, and what a search would be like then. Opens nothing. */
int32_t velo_plan_for(velo_index index, uint64_t memory_bytes, const velo_search_options *options,
                      velo_memory_plan *plan_out, velo_expectation *expectation_out);

/* ---- sizes by shape alone, before there are vectors ---- */

typedef struct velo_plan_options {
    uint32_t struct_size;
    uint32_t dim;
    uint64_t row_count;            /* of all shards; 0 is allowed */
    uint64_t memory_bytes;         /* budget of searches of all shards; 0 = none */
    uint64_t memory_floor_bytes;   /* a smaller budget is no error if no more than this is needed */
    uint32_t shards;               /* 0 = 1 */
    int32_t dtype;                 /* of the stored vectors */
    uint32_t degree;               /* taken as it is */
    uint32_t memory_bits;          /* 0 = by the budget, or 4 */
    uint32_t record_bits;          /* UINT32_MAX = by the budget, or 10 in all */
    uint32_t links_kept;           /* of the build; UINT32_MAX = 32, 8 where codes do not fit, or the degree if that is less */
    int32_t page_links;            /* 1 or 0; negative = by the budget, or 1 */
    int32_t page_codes;            /* 1 or 0; negative = by the budget, or 0 */
    int32_t store_vectors;
    int32_t bits_step;             /* steps from the bits that the budget chooses, positive to more in memory */
    uint32_t record_code_bytes;    /* UINT32_MAX = by the budget, or 0 */
} velo_plan_options;

/* Bytes are those of all shards, except for the build. */
typedef struct velo_sizes {
    uint32_t struct_size;
    uint32_t memory_bits;
    uint32_t record_bits;
    uint32_t links_built;          /* links a vertex in links.bin */
    int32_t page_links;
    int32_t page_codes;
    uint32_t links_kept;           /* links a vertex in memory; 0 = on disk, or none */
    uint32_t page_codes_kept;      /* codes of each page, if they are all that is in memory; else 0 */
    uint32_t records_per_page;
    uint32_t record_code_bytes;    /* of a product code of each record; 0: page_codes.bin has none */
    uint64_t needed_bytes;         /* the least budget that opens an index with these options */
    uint64_t codes_least_bytes;    /* the same with the shortest codes of vectors, */
    uint64_t page_codes_least_bytes; /* and with the shortest codes of pages */
    uint64_t memory_codes_bytes;
    uint64_t memory_links_bytes;
    uint64_t memory_pages_bytes;   /* the page directory */
    uint64_t memory_cache_bytes;
    uint64_t disk_codes_bytes;
    uint64_t disk_pages_bytes;
    uint64_t disk_page_codes_bytes;
    uint64_t disk_links_bytes;
    uint64_t disk_ids_bytes;
    uint64_t disk_vectors_bytes;
    uint64_t build_whole_bytes;    /* memory of the build of one shard, in one piece */
    uint64_t build_least_bytes;    /* and in partitions */
} velo_sizes;

/* Options, memory, disk space and build memory of an index of this shape. VELO_BUDGET_TOO_SMALL: no such index opens within
 * memory_bytes. */
int32_t velo_plan_sizes(const velo_plan_options *options, velo_sizes *sizes_out);
/* Numbers of links a vertex that an open index may keep below all that were built, descending, by place; 0 beyond the last. shared:
 * 0: links of each vertex; 1: links in lists that a block of vertices shares. */
uint32_t velo_links_step(uint32_t place, int32_t shared);

/* Names `file_names` in the manifest of a finished index instead of the files that begin with `prefix`, and keeps `user_json`
 * there: one rename, after which the files that are no longer named may be removed. */
int32_t velo_index_recommit(const char *path, const char *prefix, const char *const *file_names, uint32_t file_count,
                            const char *user_json);

/* ---- filters: a store of columns in placement order, a predicate program over them ---- */

typedef struct velo_columns velo_columns;

typedef enum velo_column_type {
    VELO_COLUMN_BOOL = 0,          /* values: bit-packed as in Arrow */
    VELO_COLUMN_I8 = 1, VELO_COLUMN_I16 = 2, VELO_COLUMN_I32 = 3, VELO_COLUMN_I64 = 4,
    VELO_COLUMN_U8 = 5, VELO_COLUMN_U16 = 6, VELO_COLUMN_U32 = 7, VELO_COLUMN_U64 = 8,
    VELO_COLUMN_F32 = 9, VELO_COLUMN_F64 = 10,
    VELO_COLUMN_CODE32 = 11,       /* strings as int32 codes of a sorted dictionary: order of codes = order of strings */
    VELO_COLUMN_LIST_CODE32 = 12,  /* list<int32 code>; offsets int32, values int32 */
    VELO_COLUMN_LIST_I64 = 13      /* list<int64>; offsets int32, values int64 */
} velo_column_type;

/* Buffers are borrowed: the caller keeps them alive and unchanged until velo_columns_close. */
typedef struct velo_column {
    uint32_t struct_size;
    int32_t type;
    const char *name;
    uint64_t row_count;
    const uint8_t *validity;       /* Arrow bitmap, or NULL when nothing is null */
    uint64_t validity_offset;      /* in bits */
    const void *values;
    uint64_t values_offset;        /* in elements (in bits for BOOL) */
    uint64_t values_count;         /* elements behind `values`, for checks of list offsets */
    const int32_t *offsets;        /* lists: row_count + 1 entries */
} velo_column;

int32_t velo_columns_open(uint64_t row_count, velo_columns **columns_out);
int32_t velo_columns_add(velo_columns *columns, const velo_column *column);

/* Which rows have which value of each column (docs/FORMAT.md, columns.postings): written to a file and synced; mapped, once
 * all columns are added and before a filter is compiled over them. `generation` must be the one it was written with. */
int32_t velo_columns_write_postings(const velo_columns *columns, const char *path, uint64_t generation);
int32_t velo_columns_load_postings(velo_columns *columns, const char *path, uint64_t generation);

typedef struct velo_columns_info {
    uint32_t struct_size;
    uint32_t has_postings;
    uint64_t resident_bytes;       /* beside the columns' own buffers */
    uint64_t mapped_bytes;         /* of the postings */
} velo_columns_info;

int32_t velo_columns_info_get(velo_columns *columns, velo_columns_info *info_out);
/* After this no filter compiled over them may be used. */
int32_t velo_columns_close(velo_columns *columns);

/* `program` is the byte code that velo/filters/program.py writes and docs/FORMAT.md draws; checked here against the columns. */
int32_t velo_filter_compile(velo_columns *columns, const uint8_t *program, uint64_t program_size, velo_filter **filter_out);
/* bits: ceil(row_count / 8) bytes, bit v = vertex v passes; copied. */
int32_t velo_filter_mask(const uint8_t *bits, uint64_t row_count, velo_filter **filter_out);
/* What passes `filter` and is in `rows`, a mask (velo_filter_mask, velo_live_view_rows). Both must outlive it. */
int32_t velo_filter_restrict(velo_filter *filter, const velo_filter *rows, velo_filter **filter_out);
/* *count_out = rows that pass, exact; matches_out, when not NULL, gets ceil(row_count / 8) bytes of bits. */
int32_t velo_filter_count(const velo_filter *filter, uint64_t *count_out, uint8_t *matches_out);
/* Finds all matches now, from postings where that is less work than a look at every row; searches then ask one bit. */
int32_t velo_filter_resolve(velo_filter *filter);
/* Finds all matches too, in the smallest form: few of them are kept as a list, without a bit for every vertex. */
int32_t velo_filter_find(velo_filter *filter, uint64_t *count_out);

typedef struct velo_filter_info {
    uint32_t struct_size;
    int32_t is_exact;              /* 1: expected_share is the share itself */
    int32_t is_resolved;
    int32_t zero;
    double expected_share;         /* of rows that pass, 0 to 1 */
    uint64_t memory_bytes;         /* of the matches found so far */
} velo_filter_info;

int32_t velo_filter_info_get(velo_filter *filter, velo_filter_info *info_out);
/* passes_out[i] = 1 where vertices[i] passes, else 0; asked one after the other, as a search asks. A vertex that is no row
 * is VELO_INVALID_ARGUMENT. */
int32_t velo_filter_check(const velo_filter *filter, const uint32_t *vertices, uint64_t vertex_count, uint8_t *passes_out);
int32_t velo_filter_close(velo_filter *filter);

/* ---- live data: rows of an index come and go while it answers (docs/FORMAT.md, "Live data") ---- */

/* The folder of an index by its descriptor, which is the library's from then on. The last user closes it: a velo_live that was
 * opened with it is one, and the caller until velo_folder_release, which sets `*folder` to NULL. */
typedef struct velo_folder velo_folder;
int32_t velo_folder_take(int32_t descriptor, velo_folder **folder_out);
int32_t velo_folder_release(velo_folder **folder);

typedef enum velo_durability {
    VELO_DURABILITY_SYNC = 0,      /* a write returns once it is on the device; one sync serves all that wait */
    VELO_DURABILITY_INTERVAL = 1,  /* it is there 100 ms later */
    VELO_DURABILITY_PROCESS = 2    /* when the system gets to it; a killed process loses nothing, a power cut may */
} velo_durability;

typedef struct velo_live_options {
    uint32_t struct_size;
    int32_t writable;              /* 1: also to write; any number of processes may */
    int32_t durability;            /* velo_durability */
    uint32_t timeout_ms;           /* how long a call waits for one of another process; then VELO_BUSY. 0 = 60 s */
    uint64_t checkpoint_bytes;     /* a longer log is folded into tombstones; 0 = 4 MiB, or n / 16 where that is more */
    uint64_t delta_bytes;          /* what rows that no segment holds may take; 0 = 64 MiB */
    velo_folder *folder;           /* the folder, `path` being its name for messages; NULL = the one at `path` */
} velo_live_options;

/* Ids as Arrow has them: int64, or strings (string i is bytes[offsets[i]..offsets[i + 1]]). */
typedef struct velo_ids {
    uint32_t struct_size;
    int32_t is_string;
    uint64_t count;
    const int64_t *numbers;
    const int64_t *offsets;        /* count + 1 entries */
    const uint8_t *bytes;
    uint64_t bytes_size;
} velo_ids;

typedef struct velo_live_done {
    uint32_t struct_size;
    int32_t durable;               /* 1: on the device */
    uint64_t rows;                 /* that were there and are gone; of an insert those that are new */
    uint64_t sequence;             /* of this change; of the one before where nothing was to be done */
    uint64_t replaced;             /* of the rows inserted: in the place of one that was there */
    uint64_t row;                  /* the number of the first where the index gives them, or the row that an outcome is about */
    int32_t outcome;               /* velo_outcome */
    int32_t zero;
    uint64_t layout;               /* these four, as velo_live_info has them, where something was done or was before */
    uint64_t row_count;            /* rows and delta_rows */
    uint64_t delta_bytes;
    uint64_t delta_bytes_max;
} velo_live_done;

typedef enum velo_outcome {
    VELO_OUTCOME_DONE = 0,
    VELO_OUTCOME_DUPLICATE = 1,    /* the id of `row` is there; in this and the next two nothing was done */
    VELO_OUTCOME_FULL = 2,         /* the delta has no room; `row`: the bytes that the call takes of it */
    VELO_OUTCOME_STALE = 3,        /* `layout` is no longer that of the folder, or a row of an update is there no more */
    VELO_OUTCOME_REPEATED = 4,     /* a call of this request was done before; the struct tells of that */
    VELO_OUTCOME_NO_ROW_NUMBER = 5,/* the id of `row` is no number that the index ever gave; nothing was done */
    VELO_OUTCOME_MOVED = 6         /* of every call that writes: another process changed the segments, and nothing was done: open
                                    * it again and repeat the call. This handle answers what it saw last */
} velo_outcome;

typedef enum velo_id_kind { VELO_IDS_ROW = 0, VELO_IDS_NUMBERS = 1, VELO_IDS_STRINGS = 2 } velo_id_kind;

typedef struct velo_live_insert_options {
    uint32_t struct_size;
    int32_t is_upsert;             /* 1: takes the place of rows with the same ids */
    int32_t id_kind;               /* velo_id_kind; with VELO_IDS_ROW an insert brings none and an upsert numbers once given */
    uint32_t row_count;
    const uint8_t *vectors;        /* contiguous, in the index's dtype */
    uint64_t vectors_size;
    const uint8_t *metadata;       /* a record batch of Arrow; see velo_live_record */
    uint64_t metadata_size;
    const uint8_t *request;        /* a name, 256 bytes at most: a call with one of the last 1,024 is not done again */
    uint64_t request_size;
    const uint64_t *buffer_sizes;  /* NULL, or `metadata` has the buffers of such a batch, of columns without nulls, one after the */
    uint32_t buffer_count;         /* other, in these sizes: the library makes the batch */
    uint32_t column_count;         /* of them */
    uint32_t mark;                 /* not 0: columns were added since the index was made, and this number precedes the batch */
    uint32_t timeout_ms;           /* as of velo_live_options, of this call; 0 = as there */
} velo_live_insert_options;

typedef struct velo_live_info {
    uint32_t struct_size;
    int32_t is_written;            /* 0: as velo_build_commit left it, without a log; the files of its segment are in `path` itself */
    int32_t is_writable;
    uint32_t segment_count;
    uint64_t generation;           /* of live.json */
    uint64_t sequence;             /* of the last change seen */
    uint64_t rows;                 /* dead ones among them */
    uint64_t dead_rows;
    uint64_t log_bytes;
    uint64_t log_synced_bytes;
    uint64_t layout;               /* of segments and delta; a commit changes it */
    uint64_t delta_rows;           /* that no segment holds; dead ones among them */
    uint64_t delta_dead_rows;
    uint64_t delta_bytes;
    uint64_t delta_bytes_max;
    uint64_t next_row;             /* the number of the next row, where the index gives them */
    uint32_t dim;
    int32_t dtype;
    int32_t metric;
    int32_t id_kind;               /* velo_id_kind; -1 where no row has told */
} velo_live_info;

/* A moment: segments, their dead rows, and the delta up to a row. Others write on; it stays as it is, and may outlive its
 * velo_live. */

typedef struct velo_live_view_info {
    uint32_t struct_size;
    uint32_t segment_count;
    uint64_t layout;
    uint64_t sequence;
    uint32_t record_count;         /* of the delta: calls that brought rows */
    uint32_t delta_rows;
    uint64_t delta_dead_rows;
    uint64_t schema_version;       /* of the columns that its rows have; velo_live_schema */
    int32_t is_as_built;           /* 1: no row came since the build, and rows are in its order; some may be deleted */
    uint32_t reserved;
} velo_live_view_info;

/* Rows of one call, as they lie in memory until the view is closed. */
typedef struct velo_live_record {
    uint32_t struct_size;
    int32_t id_kind;
    uint64_t row_count;
    const int64_t *numbers;        /* or offsets and bytes, as in velo_ids */
    const int64_t *offsets;
    const uint8_t *bytes;
    uint64_t bytes_size;
    const uint8_t *vectors;
    uint64_t vectors_size;
    const uint8_t *metadata;
    uint64_t metadata_size;
} velo_live_record;

/* Three calls open it, since ids are in the caller's files: open, attach the ids of each segment in the order of its vertices
 * (borrowed until close), begin, which reads tombstones and log. begin
 * also takes what the segments' files say, which the root keeps from the first write on: the velo_id_kind (-1: no segment says),
 * the number behind that of the last row where ids are such, and the columns (NULL: none). What the root says goes first. Where
 * other processes changed the segments since velo_live_open, begin is VELO_UNSUPPORTED with argument "moved": open it again. */
int32_t velo_live_open(const char *path, const velo_live_options *options, velo_live *live_out);
/* A live index without rows in `path`, an empty folder. `schema` is kept in live.json, or NULL. */
int32_t velo_live_create(const char *path, uint32_t dim, int32_t metric, int32_t dtype, const char *schema);
/* The folder of a segment inside the index (velo_live_info.is_written), and its uuid, NUL-terminated; 65 bytes each hold any. */
int32_t velo_live_segment(velo_live live, uint32_t segment, char *path_out, char *uuid_out, uint64_t capacity);
/* Makes an empty folder for a segment that is still to be made, for velo_live_commit and velo_live_insert_segment; at least 32
 * bytes. It is held: no process removes it before it is committed, released, or the handle is closed. release_segment leaves
 * the folder in place; the next sweep removes a folder without a hold. */
int32_t velo_live_next_segment(velo_live live, char *path_out, uint64_t capacity);
int32_t velo_live_release_segment(velo_live live, const char *path);
int32_t velo_live_attach(velo_live live, uint32_t segment, const velo_ids *ids);
int32_t velo_live_begin(velo_live live, int32_t id_kind, uint64_t next_row, const char *schema);
/* The rows with these ids are gone when it returns, all or, where it fails, none; ids that no row has are left out. After
 * a failed sync every further write is VELO_IO, until the index is opened again. `timeout_ms` is as of velo_live_insert_options. */
int32_t velo_live_delete(velo_live live, const velo_ids *ids, uint32_t timeout_ms, velo_live_done *done_out);
/* The same for rows of a view: segment UINT32_MAX is the delta. `layout` is the view's. */
int32_t velo_live_delete_rows(velo_live live, uint64_t layout, const uint32_t *segments, const uint32_t *vertices,
                              uint64_t row_count, uint32_t timeout_ms, velo_live_done *done_out);
/* Rows are there when it returns, all or, where it fails, none. Ids of one call are distinct; NULL where there are none. */
int32_t velo_live_insert(velo_live live, const velo_ids *ids, const velo_live_insert_options *options, velo_live_done *done_out);
/* A call of more rows than the delta has room for comes as a segment: reserve, make an ordinary index of the rows in a folder of
 * velo_live_next_segment, and insert_segment. `ids` and `options` as for velo_live_insert, without vectors and metadata. reserve
 * tells early what insert_segment would tell at this moment; `row` is then the number of the first row, where the index gives
 * them, to be given as `first_row`. The segment's files are complete and synced; `segment_ids` are its own, borrowed as by attach.
 * All of its rows are there when insert_segment returns, and on the device. The outcome is that of velo_live_insert. */
int32_t velo_live_reserve(velo_live live, const velo_ids *ids, const velo_live_insert_options *options, velo_live_done *done_out);
int32_t velo_live_insert_segment(velo_live live, const velo_ids *ids, const velo_live_insert_options *options, uint64_t first_row,
                              const char *path, const char *uuid, const velo_ids *segment_ids, velo_live_done *done_out);
/* An upsert in the place of rows of a view, given as to velo_live_delete_rows: where one of them is there no more nothing is
 * done, and the outcome is VELO_OUTCOME_STALE. */
int32_t velo_live_update(velo_live live, const velo_ids *ids, const velo_live_insert_options *options, uint64_t layout,
                         const uint32_t *segments, const uint32_t *vertices, velo_live_done *done_out);
/* A look at what other processes did since, of a reader or a writer; it waits for no sync and no lock of theirs. 0 nothing, 1
 * something, 2 the segments are others now, so it has to be opened again. VELO_UNSUPPORTED: the folder holds another index now. */
int32_t velo_live_refresh(velo_live live, int32_t *changed_out);
int32_t velo_live_view_take(velo_live live, velo_live_view **view_out);
/* Another number once a call of this handle may have changed what a view shows; 0 after it was closed. */
uint64_t velo_live_version(velo_live live);
/* As velo_live_segment, of the segments of a view. */
int32_t velo_live_view_segment(const velo_live_view *view, uint32_t segment, char *path_out, char *uuid_out, uint64_t capacity);
int32_t velo_live_view_info_get(const velo_live_view *view, velo_live_view_info *info_out);
/* The rows of a segment that are not dead: a filter of its own. NULL where none is dead. */
int32_t velo_live_view_rows(const velo_live_view *view, uint32_t segment, velo_filter **filter_out);
/* ceil(delta_rows / 8) bytes, bit r = row r of the delta is dead. */
int32_t velo_live_view_dead(const velo_live_view *view, uint8_t *bits_out);
int32_t velo_live_view_record(const velo_live_view *view, uint32_t record, velo_live_record *record_out);
/* The k nearest rows of the delta alone for each of float32 queries. rows_out and distances_out have k entries a query, -1
 * and infinity where there are fewer; looks_out says how many rows were measured. */
int32_t velo_live_view_search(const velo_delta *delta, const float *queries, uint32_t query_count, uint32_t k, int64_t *rows_out,
                              float *distances_out, uint32_t *counts_out, uint32_t *looks_out);
/* A segment in the folder `path` (velo_live_next_segment; NULL: nothing lived) takes the place of the segments of the view and, with
 * with_delta, of its delta. The segment's files are complete and synced. `ids` are its own, borrowed as by attach. `taken`: of
 * each of the segments ceil(n / 64) words, bit v = its row v went into the new one. What of that was deleted or replaced since
 * is dead in it from its first moment. VELO_OUTCOME_STALE: another commit changed its sources. A
 * commit of segments and one of the delta may be under way together; a folder in the making is held by a shared flock. */
int32_t velo_live_commit(velo_live live, const velo_live_view *view, const uint32_t *segments, uint32_t segment_count,
                       const uint64_t *taken, int32_t with_delta, const char *path, const char *uuid, const velo_ids *ids, velo_live_done *done_out);
/* The columns as they are now: as much of `schema` as `capacity` takes, no zero behind it, its size (0: there are none), and a
 * version that changes with it. */
int32_t velo_live_schema(velo_live live, char *text_out, uint64_t capacity, uint64_t *size_out, uint64_t *version_out);
/* Columns were added: the schema from now on, where it is still of `version`; else nothing is done, and the outcome is
 * VELO_OUTCOME_STALE. On the device when this returns. Segments and records stay as they are: they may lack the last columns. */
int32_t velo_live_set_schema(velo_live live, const char *schema, uint64_t version, velo_live_done *done_out);
/* Removes merged segments, except those whose folder has a shared flock. */
int32_t velo_live_sweep(velo_live live);
int32_t velo_live_view_close(velo_live_view *view);
/* All changes so far are on the device when it returns. */
int32_t velo_live_sync(velo_live live);
int32_t velo_live_info_get(velo_live live, velo_live_info *info_out);
/* A writer syncs, also where another process does not let go of the folder. The handle is closed, whatever the status is but VELO_BUSY. */
int32_t velo_live_close(const velo_live *live);

#endif
