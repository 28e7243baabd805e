//! A record as the cache keeps it: the factors of the full code, the lower code, the adjacency list, and room to look
//! past the end of both.
const std = @import("std");
const layout = @import("layout");
const quant = @import("quant");

/// Longer records are not cached; at 128 dimensions a record has 150 bytes.
pub const bytes_max = 8192;
const factor_bytes = 6;
pub const padding_bytes = layout.adjacency.over_read_bytes;

pub const Record = struct { factors: quant.RecordFactors, lower: [*]const u8, list: []const u8 };

/// Null when the record is too long.
pub fn write(out: *[bytes_max]u8, lower: []const u8, factors: quant.RecordFactors, list: []const u8) ?[]u8 {
    const size = factor_bytes + lower.len + list.len + padding_bytes;
    if (size > out.len) return null;
    std.mem.writeInt(u32, out[0..4], @bitCast(factors.offset), .little);
    std.mem.writeInt(u16, out[4..factor_bytes], factors.ratio, .little);
    @memcpy(out[factor_bytes..][0..lower.len], lower);
    @memcpy(out[factor_bytes + lower.len ..][0..list.len], list);
    @memset(out[factor_bytes + lower.len + list.len ..][0..padding_bytes], 0);
    return out[0..size];
}

/// `bytes` as `write` gave them.
pub fn read(bytes: []const u8, lower_bytes: usize) Record {
    return .{
        .factors = .{ .offset = @bitCast(std.mem.readInt(u32, bytes[0..4], .little)), .ratio = std.mem.readInt(u16, bytes[4..factor_bytes], .little) },
        .lower = bytes.ptr + factor_bytes,
        .list = bytes[factor_bytes + lower_bytes .. bytes.len - padding_bytes],
    };
}

/// Slots of the cache: long enough for nearly all records of an index.
pub fn slot_bytes(lower_bytes: u32, adjacency_bytes: u32) u32 {
    return @min(bytes_max, factor_bytes + lower_bytes + adjacency_bytes + padding_bytes);
}

test "a record reads back" {
    var out: [bytes_max]u8 = undefined;
    const bytes = write(&out, "abcd", .{ .offset = -2.5, .ratio = 770 }, "xyz").?;
    const back = read(bytes, 4);
    try std.testing.expectEqual(770, back.factors.ratio);
    try std.testing.expectEqual(-2.5, back.factors.offset);
    try std.testing.expectEqualStrings("abcd", back.lower[0..4]);
    try std.testing.expectEqualStrings("xyz", back.list);
    const long: [bytes_max]u8 = @splat(1);
    try std.testing.expectEqual(null, write(&out, &long, .{ .offset = 0, .ratio = 0 }, ""));
}
