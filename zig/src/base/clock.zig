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
    const start = nowMicros();
    var last = start;
    var readings: u32 = 0;
    // Until it has moved, however long another process has the processor between two readings.
    while (readings < 1000 or last == start) : (readings += 1) {
        const now = nowMicros();
        try std.testing.expect(now >= last);
        last = now;
    }
}
