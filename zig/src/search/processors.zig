//! Workers are bound to processors: those of indexes that are open side by side spread over the machine.
const std = @import("std");
const builtin = @import("builtin");
const assert = std.debug.assert;

/// The next processor to bind a worker to.
var upcoming: std.atomic.Value(u32) = .init(0);

/// Numbers for so many workers, from the one returned on.
pub fn take(count: u32) u32 {
    return upcoming.fetchAdd(count, .monotonic);
}

/// Binds the calling thread to one of the processors it may run on. A wish: a system that refuses loses only speed.
pub fn pin(number: u32) void {
    const linux = std.os.linux;
    var allowed: linux.cpu_set_t = @splat(0);
    if (linux.E.init(linux.sched_getaffinity(0, @sizeOf(linux.cpu_set_t), &allowed)) != .SUCCESS) return;
    var count: u32 = 0;
    for (allowed) |word| count += @popCount(word);
    if (count == 0) return;
    var skip = number % count;
    for (&allowed, 0..) |*word, i| {
        var rest = word.*;
        while (rest != 0) : (rest &= rest - 1) {
            if (skip == 0) {
                var one: linux.cpu_set_t = @splat(0);
                one[i] = rest & (~rest + 1);
                linux.sched_setaffinity(0, &one) catch {};
                return;
            }
            skip -= 1;
        }
    }
}

comptime {
    assert(builtin.os.tag == .linux);
}
