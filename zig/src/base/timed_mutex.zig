//! A mutex that a thread may stop waiting for.
const std = @import("std");
const Futex = std.Thread.Futex;

pub const TimedMutex = struct {
    state: std.atomic.Value(u32) = .init(free),

    const free = 0;
    const held = 1;
    /// Held, and other threads may wait for it.
    const contended = 2;

    pub fn try_lock(self: *TimedMutex) bool {
        return self.state.cmpxchgStrong(free, held, .acquire, .monotonic) == null;
    }

    /// Whether it was locked within the time.
    pub fn lock(self: *TimedMutex, timeout_ns: u64) bool {
        if (self.try_lock()) return true;
        if (timeout_ns == 0) return false;
        var timer = std.time.Timer.start() catch unreachable; // always there on Linux
        while (self.state.swap(contended, .acquire) != free) {
            const passed_ns = timer.read();
            if (passed_ns >= timeout_ns) return false;
            // The state is looked at again in either case: a thread whose time ends may have been the one that was woken.
            Futex.timedWait(&self.state, contended, timeout_ns - passed_ns) catch {};
        }
        return true;
    }

    pub fn unlock(self: *TimedMutex) void {
        if (self.state.swap(free, .release) == contended) Futex.wake(&self.state, 1);
    }
};

test "one thread at a time holds it, and a wait ends with its time" {
    const Shared = struct {
        mutex: TimedMutex = .{},
        count: u64 = 0,

        fn add(self: *@This()) void {
            for (0..2000) |_| {
                while (!self.mutex.lock(std.time.ns_per_ms)) {}
                defer self.mutex.unlock();
                self.count += 1;
            }
        }
    };
    var shared: Shared = .{};
    var threads: [4]std.Thread = undefined;
    for (&threads) |*one| one.* = try std.Thread.spawn(.{}, Shared.add, .{&shared});
    for (threads) |one| one.join();
    try std.testing.expectEqual(4 * 2000, shared.count);

    try std.testing.expect(shared.mutex.try_lock());
    try std.testing.expect(!shared.mutex.try_lock());
    try std.testing.expect(!shared.mutex.lock(0));
    try std.testing.expect(!shared.mutex.lock(std.time.ns_per_ms));
    shared.mutex.unlock();
    try std.testing.expect(shared.mutex.lock(std.time.ns_per_ms));
    shared.mutex.unlock();
}
