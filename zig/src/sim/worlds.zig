//! How many simulated worlds a run of tests makes, and which. As it ships, the library runs them several times as fast as in
//! Debug: there all of them are made (`zig build test-worlds -Dlong`), and some in Debug and under ThreadSanitizer. A short
//! run makes a part of each. Every run makes others: they follow from its seed.
const std = @import("std");
const builtin = @import("builtin");

/// How many of what a long run makes `most` of as the library ships, and `under_tsan` under ThreadSanitizer; or so many as a
/// variable of the environment says.
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
