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

/// VELO_LIVE_SEED=SEED or SEED,CRASH: one world alone, which tells what happens in it.
pub fn only() ?struct { seed: u64, crash_at: ?u64 } {
    var parts = std.mem.splitScalar(u8, std.posix.getenv("VELO_LIVE_SEED") orelse return null, ',');
    const seed = std.fmt.parseInt(u64, parts.first(), 10) catch return null;
    return .{ .seed = seed, .crash_at = std.fmt.parseInt(u64, parts.rest(), 10) catch null };
}

/// Runs one world and finds its leaks, without a stack trace at each of millions of allocations.
pub fn run(comptime world: fn (std.mem.Allocator, u64, ?u64) anyerror!u64, seed: u64, crash_at: ?u64) !u64 {
    var leaks: std.heap.DebugAllocator(.{ .stack_trace_frames = 0 }) = .{ .backing_allocator = std.heap.c_allocator };
    const result = try world(leaks.allocator(), seed, crash_at);
    if (leaks.deinit() == .ok) return result;
    std.debug.print("seed {d}: leak\n", .{seed});
    return error.Leak;
}
