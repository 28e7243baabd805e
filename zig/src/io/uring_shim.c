/* The few calls of liburing that velo needs. liburing's inline functions use C atomics that do not translate to Zig,
 * so they stay on this side; uring.zig declares these functions by hand and holds all policy. */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

struct velo_uring {
    struct io_uring ring;
    int fds[2]; /* -1 without such a file */
    int files_registered;
    const char *buffers;
    size_t buffers_size;
    int buffers_registered;
    int enabled;
};

struct velo_uring_completion {
    uint64_t context;
    int32_t result;
    uint32_t reserved;
};

#ifndef IORING_SETUP_SINGLE_ISSUER
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif

/* From what the newest kernels take to what the first ones took. The ring starts disabled where a single issuer is
 * declared: the thread that enables it is the issuer, so it may be opened on another. TASKRUN_FLAG lets a poll that
 * finds nothing return without a system call. */
static const unsigned setup_flags[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
        IORING_SETUP_R_DISABLED | IORING_SETUP_CLAMP,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_CLAMP,
    IORING_SETUP_CLAMP,
    0,
};

/* 0, or a negative errno. Registering the files and the buffers is a wish: without it reads cost a little more. A
 * descriptor of -1 is no file. */
int velo_uring_open(struct velo_uring **uring_out, unsigned entries, int fd, int second_fd, void *buffers,
                    size_t buffers_size) {
    struct velo_uring *uring = calloc(1, sizeof *uring);
    if (!uring) return -ENOMEM;
    int status = -EINVAL;
    unsigned flags = 0;
    for (size_t i = 0; i < sizeof setup_flags / sizeof *setup_flags && status == -EINVAL; i++) {
        struct io_uring_params params;
        memset(&params, 0, sizeof params);
        flags = params.flags = setup_flags[i];
        status = io_uring_queue_init_params(entries, &uring->ring, &params);
    }
    if (status < 0) {
        free(uring);
        return status;
    }
    uring->enabled = !(flags & IORING_SETUP_R_DISABLED);
    uring->fds[0] = fd;
    uring->fds[1] = second_fd;
    uring->files_registered = fd >= 0 && io_uring_register_files(&uring->ring, uring->fds, second_fd < 0 ? 1 : 2) == 0;
    if (buffers_size > 0) {
        struct iovec whole = {.iov_base = buffers, .iov_len = buffers_size};
        uring->buffers_registered = io_uring_register_buffers(&uring->ring, &whole, 1) == 0;
        uring->buffers = buffers;
        uring->buffers_size = buffers_size;
    }
    *uring_out = uring;
    return 0;
}

/* Closes the ring. The kernel must have no read left. */
void velo_uring_close(struct velo_uring *uring) {
    io_uring_queue_exit(&uring->ring);
    free(uring);
}

/* Binds the ring to the calling thread, the first time. */
int velo_uring_enable(struct velo_uring *uring) {
    if (uring->enabled) return 0;
    int status = io_uring_enable_rings(&uring->ring);
    if (status >= 0) uring->enabled = 1;
    return status < 0 ? status : 0;
}

/* Prepares one read of the first or the second file (0, 1), or of another_fd where that is not -1; 0 when the submission
 * queue is full. Nothing reaches the kernel before the next submit. */
int velo_uring_read(struct velo_uring *uring, unsigned file, int another_fd, uint64_t offset, void *buffer,
                    unsigned length, uint64_t context) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
    if (!sqe) return 0;
    const char *start = buffer;
    int registered = uring->files_registered && another_fd < 0;
    int fd = another_fd >= 0 ? another_fd : registered ? (int)file : uring->fds[file];
    if (uring->buffers_registered && start >= uring->buffers &&
        start + length <= uring->buffers + uring->buffers_size)
        io_uring_prep_read_fixed(sqe, fd, buffer, length, offset, 0);
    else
        io_uring_prep_read(sqe, fd, buffer, length, offset);
    if (registered) sqe->flags |= IOSQE_FIXED_FILE;
    sqe->user_data = context;
    return 1;
}

/* Hands over what is prepared and, with wait_count > 0, waits for so many completions: one system call. What the kernel
 * did not take stays prepared. A negative errno, or how many it took. */
int velo_uring_submit(struct velo_uring *uring, unsigned wait_count) {
    return wait_count ? io_uring_submit_and_wait(&uring->ring, wait_count) : io_uring_submit(&uring->ring);
}

/* Takes completions that are there; no system call unless the kernel has some that it could not post yet. */
unsigned velo_uring_reap(struct velo_uring *uring, struct velo_uring_completion *completions, unsigned capacity) {
    enum { batch = 32 };
    struct io_uring_cqe *cqes[batch];
    unsigned count = 0;
    while (count < capacity) {
        unsigned wanted = capacity - count < batch ? capacity - count : batch;
        unsigned found = io_uring_peek_batch_cqe(&uring->ring, cqes, wanted);
        for (unsigned i = 0; i < found; i++) {
            completions[count + i].context = cqes[i]->user_data;
            completions[count + i].result = cqes[i]->res;
            completions[count + i].reserved = 0;
        }
        io_uring_cq_advance(&uring->ring, found);
        count += found;
        if (found < wanted) break;
    }
    return count;
}
