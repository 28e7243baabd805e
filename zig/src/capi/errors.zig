//! Status codes, and the last failure of each thread.
const std = @import("std");

/// As velo_status in velo.h; a test reads the header and compares.
pub const Status = enum(i32) {
    ok = 0,
    invalid_argument = 1,
    dimension_mismatch = 2,
    not_finite = 3,
    empty = 4,
    not_an_index = 5,
    corrupt = 6,
    unsupported_version = 7,
    io = 8,
    no_space = 9,
    permission = 10,
    out_of_memory = 11,
    budget_too_small = 12,
    canceled = 13,
    timeout = 14,
    closed = 15,
    forked = 16,
    filter = 17,
    busy = 18,
    exists = 19,
    unsupported = 20,
    internal = 21,
    gpu = 22,
};

/// As velo_error in velo.h.
pub const Error = extern struct {
    struct_size: u32 = @sizeOf(Error),
    status: i32 = 0,
    message: [512]u8 = @splat(0),
    argument: [64]u8 = @splat(0),
    file: [256]u8 = @splat(0),
    page: i64 = -1,
    row: i64 = -1,
    needed_bytes: u64 = 0,
};

/// The place of the error, as far as is known.
pub const Detail = struct {
    argument: []const u8 = "",
    file: []const u8 = "",
    page: i64 = -1,
    row: i64 = -1,
    needed_bytes: u64 = 0,
};

threadlocal var last: Error = .{};

/// Remembers the failure for velo_last_error and returns the status, so that a call ends with `return fail(...)`.
pub fn fail(status: Status, detail: Detail, comptime format: []const u8, args: anytype) i32 {
    last = .{
        .status = @intFromEnum(status),
        .page = detail.page,
        .row = detail.row,
        .needed_bytes = detail.needed_bytes,
    };
    var writer: std.Io.Writer = .fixed(last.message[0 .. last.message.len - 1]);
    writer.print(format, args) catch {}; // a sentence cut short still says most of it
    copy(&last.argument, detail.argument);
    copy(&last.file, detail.file);
    return last.status;
}

/// Status of the last failure of this thread.
pub fn last_status() i32 {
    return last.status;
}

fn copy(to: []u8, from: []const u8) void {
    const len = @min(to.len - 1, from.len);
    @memcpy(to[0..len], from[0..len]);
    to[len] = 0;
}

pub export fn velo_last_error(error_out: ?*Error) i32 {
    const out = error_out orelse return fail(.invalid_argument, .{ .argument = "error_out" }, "error_out is NULL", .{});
    // A caller of an older header has a shorter struct, one of a newer a longer: only what both know is written.
    const size = @min(out.struct_size, @sizeOf(Error));
    if (size < @sizeOf(u32)) return fail(.invalid_argument, .{ .argument = "error_out" }, "struct_size {d} of velo_error is too small", .{out.struct_size});
    const given = out.struct_size;
    const bytes: [*]u8 = @ptrCast(out);
    @memcpy(bytes[0..size], std.mem.asBytes(&last)[0..size]);
    out.struct_size = given;
    return @intFromEnum(Status.ok);
}

test "the last failure is kept whole, cut where it is too long" {
    const long: [2000]u8 = @splat('x');
    try std.testing.expectEqual(6, fail(.corrupt, .{ .argument = &long, .file = "pages.bin", .page = 7, .row = 3, .needed_bytes = 9 }, "{s} {d}", .{ "page", 7 }));
    var out = Error{};
    try std.testing.expectEqual(0, velo_last_error(&out));
    try std.testing.expectEqual(6, out.status);
    try std.testing.expectEqualStrings("page 7", std.mem.sliceTo(&out.message, 0));
    try std.testing.expectEqual(63, std.mem.sliceTo(&out.argument, 0).len);
    try std.testing.expectEqualStrings("pages.bin", std.mem.sliceTo(&out.file, 0));
    try std.testing.expectEqual(7, out.page);
    try std.testing.expectEqual(3, out.row);
    try std.testing.expectEqual(9, out.needed_bytes);

    _ = fail(.internal, .{}, "{s}", .{&long});
    var short = Error{ .struct_size = 16 };
    try std.testing.expectEqual(0, velo_last_error(&short));
    try std.testing.expectEqual(21, short.status);
    try std.testing.expectEqual(16, short.struct_size);
    try std.testing.expectEqual(0, short.message[8]); // beyond the caller's struct nothing is written
    try std.testing.expectEqual(0, velo_last_error(&out));
    try std.testing.expectEqual(511, std.mem.sliceTo(&out.message, 0).len);
    try std.testing.expectEqual(1, velo_last_error(null));
}
