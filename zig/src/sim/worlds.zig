//! How many simulated worlds a run of tests makes. As it ships, the library runs them several times as fast as in Debug: there
//! all of them are made (`zig build test-worlds`), and some in Debug and under ThreadSanitizer.
const std = @import("std");
const builtin = @import("builtin");

pub fn count(most: u64) u64 {
    const text = std.posix.getenv("VELO_LIVE_RUNS") orelse return default(most);
    return std.fmt.parseInt(u64, text, 10) catch default(most);
}

fn default(most: u64) u64 {
    if (builtin.sanitize_thread) return 20;
    return if (builtin.mode == .Debug) most / 10 else most;
}

/// Worlds that end at each of their changes once.
pub fn crash_count(most: u64) u64 {
    if (builtin.sanitize_thread) return 1;
    return if (builtin.mode == .Debug) 2 else most;
}
