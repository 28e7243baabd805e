//! Names of files and folders that velo numbers.
const std = @import("std");
const manifest_file = @import("manifest.zig");

pub const temporary = manifest_file.file_name ++ ".tmp";
/// Of the folder of a segment.
pub const part_stem = "part-";

pub fn numbered_name(allocator: std.mem.Allocator, next_file: *u64, comptime stem: []const u8, comptime suffix: []const u8) error{OutOfMemory}![]u8 {
    const name = try std.fmt.allocPrint(allocator, stem ++ "-{x:0>16}." ++ suffix, .{next_file.*});
    next_file.* += 1;
    return name;
}

/// The number in such a name; null: it is none.
pub fn number_of(name: []const u8, comptime stem: []const u8, comptime suffix: []const u8) ?u64 {
    if (!is_ours(name, stem, suffix)) return null;
    return std.fmt.parseInt(u64, name[stem.len..][0..16], 16) catch unreachable; // 16 digits
}

/// Whether this is a name as velo numbers them. All other files are not velo's.
pub fn is_ours(name: []const u8, comptime stem: []const u8, comptime suffix: []const u8) bool {
    if (name.len != stem.len + 16 + suffix.len) return false;
    if (!std.mem.startsWith(u8, name, stem) or !std.mem.endsWith(u8, name, suffix)) return false;
    return std.mem.indexOfNone(u8, name[stem.len..][0..16], "0123456789abcdef") == null;
}
