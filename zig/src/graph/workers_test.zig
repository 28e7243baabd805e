//! Each piece of work is done once, however much is left to who does it.
const std = @import("std");
const testing = std.testing;
const linux = std.os.linux;
const workers = @import("workers.zig");
const Crew = workers.Crew;

/// Work that is handed out piece by piece, and what those who did it saw.
const Pieces = struct {
    const count = 1000;

    crew: Crew,
    next: std.atomic.Value(u32) = .init(0),
    done: [count]std.atomic.Value(u32) = @splat(.init(0)),
    wrong: std.atomic.Value(u32) = .init(0),
    stopped: bool = false,
    /// Those behind wait for it, as if no processor were left to them.
    may_run: ?*std.Thread.ResetEvent = null,

    fn work(self: *Pieces, worker: u32) void {
        const is_behind = self.crew.gives_way and worker < self.crew.threads;
        if (worker >= self.crew.numbers() or policy() != @as(usize, if (is_behind) 5 else 0)) _ = self.wrong.fetchAdd(1, .monotonic);
        if (self.may_run) |event| if (is_behind) event.wait();
        while (true) {
            const piece = self.next.fetchAdd(1, .monotonic);
            if (piece >= count) break;
            _ = self.done[piece].fetchAdd(1, .monotonic);
        }
        if (self.may_run) |event| event.set();
    }

    pub fn stop(self: *Pieces) void {
        self.stopped = true;
    }

    fn expect_each_once(self: *const Pieces) !void {
        for (&self.done) |*times| try testing.expectEqual(1, times.load(.monotonic));
        try testing.expectEqual(0, self.wrong.load(.monotonic));
        try testing.expect(!self.stopped);
    }
};

/// Of the calling thread, as the kernel numbers them: 0 the usual one, 5 behind all others.
fn policy() usize {
    return linux.syscall1(.sched_getscheduler, 0);
}

test "threads do each piece once, whether they give way or not, and the caller stays as it was" {
    for ([_]u32{ 1, 2, 5 }) |threads| {
        for ([_]bool{ false, true }) |gives_way| {
            var pieces: Pieces = .{ .crew = .of(.{ .threads = threads, .gives_way = gives_way }) };
            try workers.run(pieces.crew, &pieces, Pieces.work);
            try pieces.expect_each_once();
            try testing.expectEqual(0, policy());
        }
    }
}

test "where nothing is left to threads that give way, their caller does the work" {
    var event: std.Thread.ResetEvent = .{};
    var pieces: Pieces = .{ .crew = .of(.{ .threads = 3, .gives_way = true }), .may_run = &event };
    try workers.run(pieces.crew, &pieces, Pieces.work);
    try pieces.expect_each_once();
}

test "one thread alone is the caller, and in shares threads are as the caller is" {
    try testing.expectEqual(1, Crew.of(.{ .threads = 1, .gives_way = true }).numbers());
    try testing.expectEqual(1, Crew.of(.{ .threads = 0, .gives_way = false }).numbers());
    try testing.expectEqual(3, Crew.of(.{ .threads = 2, .gives_way = true }).numbers());
    try testing.expectEqual(2, Crew.of(.{ .threads = 2, .gives_way = true }).in_shares().numbers());
}
