//! A segment's tombstones in a file: a bit for every row, 1 where it is dead.
const std = @import("std");
const base = @import("base");

pub const header_bytes = 64;
const magic = "VELODEAD".*;
const version = 1;

pub fn file_bytes(n: u64) usize {
    return header_bytes + 8 * base.BitSet.words_for(@intCast(n));
}

pub fn encode(allocator: std.mem.Allocator, uuid: []const u8, set: *const base.BitSet) error{OutOfMemory}![]u8 {
    const bytes = try allocator.alloc(u8, file_bytes(set.len));
    @memset(bytes[0..header_bytes], 0);
    bytes[8..16].* = magic;
    std.mem.writeInt(u32, bytes[16..20], version, .little);
    std.mem.writeInt(u64, bytes[24..32], set.len, .little);
    std.mem.writeInt(u64, bytes[32..40], set.count(), .little);
    // Tombstones of another segment are not taken for those of this one.
    std.mem.writeInt(u64, bytes[40..48], base.checksum(uuid), .little);
    for (set.words, 0..) |word, i| std.mem.writeInt(u64, bytes[header_bytes + 8 * i ..][0..8], word, .little);
    std.mem.writeInt(u64, bytes[0..8], base.checksum(bytes[8..]), .little);
    return bytes;
}

/// Fills `set`, whose length is the segment's number of rows.
pub fn parse(bytes: []const u8, uuid: []const u8, set: *base.BitSet) error{ Damaged, NewerVersion }!void {
    if (bytes.len != file_bytes(set.len) or !std.mem.eql(u8, bytes[8..16], &magic)) return error.Damaged;
    if (std.mem.readInt(u64, bytes[0..8], .little) != base.checksum(bytes[8..])) return error.Damaged;
    if (std.mem.readInt(u32, bytes[16..20], .little) != version) return error.NewerVersion;
    if (std.mem.readInt(u64, bytes[24..32], .little) != set.len) return error.Damaged;
    if (std.mem.readInt(u64, bytes[40..48], .little) != base.checksum(uuid)) return error.Damaged;
    for (set.words, 0..) |*word, i| word.* = std.mem.readInt(u64, bytes[header_bytes + 8 * i ..][0..8], .little);
    const rest: u6 = @intCast(set.len % 64);
    if (rest != 0 and set.words[set.words.len - 1] >> rest != 0) return error.Damaged;
    if (std.mem.readInt(u64, bytes[32..40], .little) != set.count()) return error.Damaged;
}

test "tombstones read back as they were; cut, flipped or of another part they do not" {
    const allocator = std.testing.allocator;
    for ([_]usize{ 1, 63, 64, 200 }) |n| {
        var prng = base.Prng.init(n);
        var set = try base.BitSet.init(allocator, n);
        defer set.deinit(allocator);
        for (0..n) |i| if (prng.boolean()) set.insert(i);
        const bytes = try encode(allocator, "u1", &set);
        defer allocator.free(bytes);
        var back = try base.BitSet.init(allocator, n);
        defer back.deinit(allocator);
        try parse(bytes, "u1", &back);
        try std.testing.expectEqualSlices(u64, set.words, back.words);
        try std.testing.expectError(error.Damaged, parse(bytes, "u2", &back));
        for (0..bytes.len) |cut| try std.testing.expectError(error.Damaged, parse(bytes[0..cut], "u1", &back));
        for (0..bytes.len * 8) |bit| {
            bytes[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
            defer bytes[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
            try std.testing.expectError(error.Damaged, parse(bytes, "u1", &back));
        }
    }
}
