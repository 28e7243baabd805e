//! Runs one function on several threads, the caller being the first, and waits for all.
const std = @import("std");
const base = @import("base");

pub const threads_max = base.limits.ranges.threads.max;

/// `work(context, worker)` for every worker below `threads`. If a thread cannot be started, `context.stop()` is
/// called, those already running are waited for, and `error.ThreadFailed` returned.
pub fn run(threads: u32, context: anytype, comptime work: fn (@TypeOf(context), u32) void) error{ThreadFailed}!void {
    var handles: [threads_max]std.Thread = undefined;
    const wanted = std.math.clamp(threads, 1, threads_max) - 1;
    var started: u32 = 0;
    var failed = false;
    while (started < wanted) : (started += 1) {
        handles[started] = std.Thread.spawn(.{ .stack_size = 1 << 20 }, work, .{ context, started + 1 }) catch {
            failed = true;
            context.stop();
            break;
        };
    }
    if (!failed) work(context, 0);
    for (handles[0..started]) |handle| handle.join();
    if (failed) return error.ThreadFailed;
}

/// One byte; spins, then yields: with more threads than cores its holder may not be running.
pub const SpinLock = struct {
    held: std.atomic.Value(bool) = .init(false),

    pub inline fn lock(self: *SpinLock) void {
        if (!self.held.swap(true, .acquire)) return;
        self.wait();
    }

    fn wait(self: *SpinLock) void {
        @branchHint(.cold);
        var spins: u32 = 0;
        while (self.held.load(.monotonic) or self.held.swap(true, .acquire)) {
            spins += 1;
            if (spins < 200) std.atomic.spinLoopHint() else std.Thread.yield() catch std.atomic.spinLoopHint();
        }
    }

    pub inline fn unlock(self: *SpinLock) void {
        self.held.store(false, .release);
    }
};
