//! The root of one kernel object.
const std = @import("std");
const level = @import("options").level;
fn checksum(bytes: [*]const u8, len: usize) callconv(.c) u64 {
    return std.hash.XxHash3.hash(0, bytes[0..len]);
}
comptime {
    @export(&checksum, .{ .name = "k_" ++ level ++ "_checksum", .visibility = .hidden });
}
