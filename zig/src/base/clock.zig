//! The monotonic clock.
const std = @import("std");

/// Microseconds on the monotonic clock; only differences mean anything.
pub fn nowMicros() u64 {
    return now_nanos() / std.time.ns_per_us;
}

/// Nanoseconds on the monotonic clock; only differences mean anything.
pub fn now_nanos() u64 {
    const t = std.posix.clock_gettime(.MONOTONIC) catch unreachable; // always there on Linux
    return @as(u64, @intCast(t.sec)) * std.time.ns_per_s + @as(u64, @intCast(t.nsec));
}

test "the clock does not run backwards, and runs" {
    const start = now_nanos();
    var last = nowMicros();
    while (now_nanos() - start < 2 * std.time.ns_per_ms) {
        const now = nowMicros();
        try std.testing.expect(now >= last);
        last = now;
    }
    try std.testing.expect(last >= start / std.time.ns_per_us + 1);
}
