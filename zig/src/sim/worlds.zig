//! Numbers and seeds of simulated worlds. The library as it ships runs all of them (`zig build test-worlds -Dlong`), since it is
//! several times as fast as in Debug; Debug and ThreadSanitizer run some. A short run has a quarter of each. Every run makes
//! others: they follow from its seed.
const std = @import("std");
const builtin = @import("builtin");

/// The number of runs, if a long run has `most` as the library ships and `under_tsan` under ThreadSanitizer; the environment
/// variable `dial` overrides it.
pub fn count(most: u64, under_tsan: u64, dial: []const u8) u64 {
    const in_mode = if (builtin.sanitize_thread) under_tsan else if (builtin.mode == .Debug) most / 10 else most;
    const default = if (is_long()) in_mode else in_mode / 4;
    const text = std.posix.getenv(dial) orelse return default;
    return std.fmt.parseInt(u64, text, 10) catch default;
}

/// Worlds that end at each of their changes once.
pub fn crash_count(most: u64) u64 {
    if (builtin.sanitize_thread) return if (is_long()) 1 else 0; // one thread alone
    if (builtin.mode == .Debug) return if (is_long()) 2 else 1;
    return if (is_long()) most else most / 4;
}

/// `zig build -Dlong`.
fn is_long() bool {
    return std.posix.getenv("VELO_LONG") != null;
}

/// The first of the worlds that a test makes one after the other; `zig build --seed` repeats them.
pub fn first_seed() u64 {
    return @as(u64, std.testing.random_seed) << 20;
}

/// Runs one world and finds its leaks, without a stack trace at each of millions of allocations.
pub fn run(comptime world: fn (std.mem.Allocator, u64, ?u64) anyerror!u64, seed: u64, crash_at: ?u64) !u64 {
    var leaks: std.heap.DebugAllocator(.{ .stack_trace_frames = 0 }) = .{ .backing_allocator = std.heap.c_allocator };
    const result = try world(leaks.allocator(), seed, crash_at);
    if (leaks.deinit() == .ok) return result;
    std.debug.print("seed {d}: leak\n", .{seed});
    return error.Leak;
}

// ---- states that may be found ----
//
// Possible states of a folder after a crash, for tests that do not know which of its writes came through.

/// For each sequence the states that calls asked for, since of two that failed either may have left its record.
/// A `State` is an array of numbers.
pub fn Model(comptime State: type) type {
    return struct {
        allocator: std.mem.Allocator,
        states: std.ArrayList(std.ArrayList(State)) = .empty,
        /// Acknowledged as durable.
        durable: u64 = 0,
        /// Acknowledged, or read when it was opened.
        sequence: u64 = 0,

        const Self = @This();

        pub fn init(allocator: std.mem.Allocator) !Self {
            var self: Self = .{ .allocator = allocator };
            try self.add(0, @splat(0));
            return self;
        }

        pub fn deinit(self: *Self) void {
            for (self.states.items) |*one| one.deinit(self.allocator);
            self.states.deinit(self.allocator);
        }

        pub fn add(self: *Self, sequence: u64, state: State) !void {
            while (self.states.items.len <= sequence) try self.states.append(self.allocator, .empty);
            try self.states.items[@intCast(sequence)].append(self.allocator, state);
        }

        /// The last one: what is there as long as nothing crashes.
        pub fn now(self: *const Self) State {
            return self.states.items[@intCast(self.sequence)].getLast();
        }

        /// This is what was found: other futures are gone.
        pub fn settle(self: *Self, sequence: u64, state: State) !void {
            self.sequence = sequence;
            while (self.states.items.len > sequence + 1) {
                var last = self.states.pop().?;
                last.deinit(self.allocator);
            }
            self.states.items[@intCast(sequence)].clearRetainingCapacity();
            try self.add(sequence, state);
        }

        pub fn check(self: *const Self, sequence: u64, state: State) !void {
            return self.check_since(self.durable, sequence, state);
        }

        /// Checks a state that was read after change `durable` was acknowledged.
        pub fn check_since(self: *const Self, durable: u64, sequence: u64, state: State) !void {
            if (sequence < durable) return error.AcknowledgedLost;
            if (sequence >= self.states.items.len) return error.NeverWritten;
            for (self.states.items[@intCast(sequence)].items) |one| if (std.meta.eql(one, state)) return;
            return error.HalfThere;
        }
    };
}
