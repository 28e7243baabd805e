//! The base room: what every other room stands on and what stands on nothing. Aligned memory, seeded randomness,
//! bit streams and bit sets, a mutex, the checksum, the CPU level, the clock, and the limits of the format.
const std = @import("std");

pub const memory = @import("memory.zig");
pub const AlignedBytes = memory.AlignedBytes;
pub const allocator = memory.allocator;
pub const alloc_untouched = memory.alloc_untouched;
pub const free_untouched = memory.free_untouched;
pub const give_back = memory.give_back;

pub const Prng = @import("prng.zig").Prng;

pub const bits = @import("bits.zig");
pub const BitReader = bits.BitReader;
pub const BitWriter = bits.BitWriter;

pub const BitSet = @import("bitset.zig").BitSet;

pub const TimedMutex = @import("timed_mutex.zig").TimedMutex;

pub const checksum = @import("checksum.zig").checksum;

pub const cpu = @import("cpu.zig");

pub const limits = @import("limits.zig");

/// Microseconds on the monotonic clock; only differences mean anything.
pub fn nowMicros() u64 {
    const now = std.posix.clock_gettime(.MONOTONIC) catch unreachable; // always there on Linux
    return @as(u64, @intCast(now.sec)) * std.time.us_per_s + @as(u64, @intCast(now.nsec)) / std.time.ns_per_us;
}

test {
    _ = memory;
    _ = @import("prng.zig");
    _ = bits;
    _ = @import("bitset.zig");
    _ = @import("timed_mutex.zig");
    _ = @import("checksum.zig");
    _ = cpu;
    _ = limits;
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
