//! Runs one function on several threads and waits for all. Threads that give way run when no other thread needs the processors.
const std = @import("std");
const base = @import("base");
const linux = std.os.linux;

pub const threads_max = base.limits.ranges.threads.max;

/// The number of working threads, and their way of sharing processors with others.
pub const Crew = struct {
    threads: u32,
    /// They run while processors have nothing else to do, so no query waits for them. If nothing is left to them for a
    /// while, the caller works too, at its own priority, so the work always ends.
    gives_way: bool = false,

    pub fn of(options: anytype) Crew {
        const threads = std.math.clamp(options.threads, 1, threads_max);
        // One thread is the caller: its result depends on the arguments alone, and it leaves the other processors free.
        return .{ .threads = threads, .gives_way = options.gives_way and threads > 1 };
    }

    /// The same threads with the priority of the caller, where each has a share that no other can finish.
    pub fn in_shares(self: Crew) Crew {
        return .{ .threads = self.threads };
    }

    /// Numbers of workers are below it.
    pub fn numbers(self: Crew) u32 {
        return self.threads + @intFromBool(self.gives_way);
    }
};

/// `work(context, worker)` for every worker below `crew.threads`, the caller being the first, or the last one beside those
/// that give way. If a thread cannot be started, `context.stop()` is called, those already running are waited for, and
/// `error.ThreadFailed` returned.
pub fn run(crew: Crew, context: anytype, comptime work: fn (@TypeOf(context), u32) void) error{ThreadFailed}!void {
    var handles: [threads_max]std.Thread = undefined;
    var behind: Behind(@TypeOf(context), work) = .{ .context = context, .threads = crew.threads };
    const first = @intFromBool(!crew.gives_way);
    const wanted = crew.threads - first;
    var started: u32 = 0;
    var failed = false;
    while (started < wanted) : (started += 1) {
        const own: std.Thread.SpawnConfig = .{ .stack_size = 1 << 20 };
        const spawned = if (crew.gives_way) std.Thread.spawn(own, @TypeOf(behind).run, .{ &behind, started }) else std.Thread.spawn(own, work, .{ context, started + first });
        handles[started] = spawned catch {
            failed = true;
            context.stop();
            break;
        };
    }
    if (!failed) if (crew.gives_way) behind.help() else work(context, 0);
    for (handles[0..started]) |handle| handle.join();
    if (failed) return error.ThreadFailed;
}

/// Threads behind all others, and their caller who looks after them.
fn Behind(comptime Context: type, comptime work: fn (Context, u32) void) type {
    return struct {
        const Self = @This();

        context: Context,
        threads: u32,
        /// Of each worker: its thread, 0 before it runs.
        ids: [threads_max]std.atomic.Value(i32) = @splat(.init(0)),
        ended: std.atomic.Value(u32) = .init(0),
        all_ended: std.Thread.ResetEvent = .{},

        fn run(self: *Self, worker: u32) void {
            go_behind();
            self.ids[worker].store(linux.gettid(), .release);
            work(self.context, worker);
            if (self.ended.fetchAdd(1, .acq_rel) + 1 == self.threads) self.all_ended.set();
        }

        /// Works, too, once all of them together had less than an eighth of a processor each.
        fn help(self: *Self) void {
            var before = self.spent_ns();
            while (true) {
                if (self.all_ended.timedWait(look_ns)) return else |_| {}
                const now = self.spent_ns();
                if (now -| before < self.threads * look_ns / 8) break;
                before = now;
            }
            work(self.context, self.threads);
        }

        /// Processor time of all. One that ended has spent all that it wanted.
        fn spent_ns(self: *const Self) u64 {
            var sum: u64 = 0;
            for (self.ids[0..self.threads]) |*id| {
                const thread = id.load(.acquire);
                if (thread == 0) continue;
                var time: linux.timespec = undefined;
                if (linux.E.init(linux.clock_gettime(clock_of(thread), &time)) != .SUCCESS) return std.math.maxInt(u64);
                sum += @as(u64, @intCast(time.sec)) * std.time.ns_per_s + @as(u64, @intCast(time.nsec));
            }
            return sum;
        }
    };
}

/// The interval at which the caller looks whether threads of the lowest priority run.
const look_ns = 100 * std.time.ns_per_ms;

/// The processor time of a thread of this process (the kernel's CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED).
fn clock_of(thread: i32) linux.clockid_t {
    return @enumFromInt(@as(u32, @bitCast((~thread << 3) | 4 | 2)));
}

/// Behind every thread of a usual policy, whatever its nice value. A kernel that refuses leaves the thread as it is.
fn go_behind() void {
    var param: linux.sched_param = .{ .priority = 0 };
    _ = linux.syscall3(.sched_setscheduler, 0, sched_idle, @intFromPtr(&param));
}

const sched_idle = 5;

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
