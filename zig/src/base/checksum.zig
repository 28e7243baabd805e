//! XXH3-64 with seed 0, compiled per CPU level with the kernels: pages are checked on every read.
const std = @import("std");
const cpu = @import("cpu.zig");

const Checksum = *const fn (bytes: [*]const u8, len: usize) callconv(.c) u64;

const per_level = blk: {
    const levels = std.meta.fields(cpu.Level);
    var table: [levels.len]Checksum = undefined;
    for (levels, &table) |field, *function| function.* = @extern(Checksum, .{ .name = "k_" ++ field.name ++ "_checksum" });
    break :blk table;
};

pub fn checksum(bytes: []const u8) u64 {
    return per_level[@intFromEnum(cpu.current())](bytes.ptr, bytes.len);
}

test "known values" {
    // From the definition of XXH3-64, seed 0.
    try std.testing.expectEqual(0x2d06800538d394c2, checksum(""));
    try std.testing.expectEqual(0x78af5f94892f3950, checksum("abc"));
}

test "every level this processor runs gives what the standard library gives, at every length" {
    var bytes: [9000]u8 = undefined;
    var prng = @import("prng.zig").Prng.init(1);
    for (&bytes) |*byte| byte.* = @truncate(prng.next());
    for (0..@intFromEnum(cpu.detect()) + 1) |i| {
        var len: usize = 0;
        while (len < bytes.len - 8) : (len += if (len < 1100) 1 else 61) {
            const part = bytes[len % 8 ..][0..len];
            try std.testing.expectEqual(std.hash.XxHash3.hash(0, part), per_level[i](part.ptr, part.len));
        }
        try std.testing.expectEqual(std.hash.XxHash3.hash(0, bytes[0..4096]), per_level[i](&bytes, 4096));
    }
}

test "one flipped bit of a page shows" {
    var page: [4096]u8 = @splat(0);
    const before = checksum(&page);
    for ([_]usize{ 0, 1, 2047, 4088, 4095 }) |i| {
        page[i] ^= 0x10;
        try std.testing.expect(checksum(&page) != before);
        page[i] ^= 0x10;
    }
    try std.testing.expectEqual(before, checksum(&page));
}
